{{- /* Name of the agent's objects, and the beginning of all other names. The policies match it,
       so it does not follow an alias of the chart. */ -}}
{{- define "psi-agent.name" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "psi-agent" }}
{{- end -}}

{{- /* Namespace of reap, bridge and planner. */ -}}
{{- define "psi-agent.unprivilegedNamespace" -}}
{{ if .Values.restricted.enabled }}{{ include "psi-agent.name" . }}-restricted{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end -}}

{{- /* dict "root" $ "app" NAME: the recommended labels. Labels of users do not replace them. */ -}}
{{- define "psi-agent.labels" -}}
{{- $labels := dict
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_")
  "app.kubernetes.io/name" .app
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "app.kubernetes.io/part-of" "psi-agent" -}}
{{ toYaml (merge $labels .root.Values.commonLabels) }}
{{- end -}}

{{- /* dict "root" $ "app" NAME "labels" MAP: labels of pods, which selectors and alerts depend on. */ -}}
{{- define "psi-agent.podLabels" -}}
{{- $labels := dict
  "app.kubernetes.io/name" .app
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/part-of" "psi-agent" -}}
{{ toYaml (merge $labels .labels .root.Values.commonLabels) }}
{{- end -}}

{{- /* dict "root" $ "app" NAME "suffix" END "namespace" NAMESPACE: metadata of an object. */ -}}
{{- define "psi-agent.metadata" -}}
name: {{ include "psi-agent.name" .root }}{{ .suffix }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "psi-agent.labels" . | nindent 2 }}
{{- end -}}

{{- /* dict as of metadata, "account" END of the account's name, "rules" YAML: a ClusterRole and its binding. */ -}}
{{- define "psi-agent.clusterRole" -}}
{{- $cluster := omit . "namespace" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "psi-agent.metadata" $cluster | nindent 2 }}
rules:
{{ .rules | trim }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "psi-agent.metadata" $cluster | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "psi-agent.name" .root }}{{ .suffix }}
subjects:
- kind: ServiceAccount
  name: {{ include "psi-agent.name" .root }}{{ .account }}
  namespace: {{ .namespace }}
{{- end -}}

{{- /* dict as of metadata: an account of pods. Its token is mounted, since all of them use the API server. */ -}}
{{- define "psi-agent.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "psi-agent.metadata" . | nindent 2 }}
  {{- with .root.Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* dict "root" $ "app" NAME "text" YAML: objects of a file, with the labels of the release. */ -}}
{{- define "psi-agent.fromFile" -}}
{{- $labels := include "psi-agent.labels" . | fromYaml -}}
{{- range splitList "\n---\n" .text }}
{{- $object := fromYaml . }}
{{- $_ := set $object.metadata "labels" (merge (dict) $labels ($object.metadata.labels | default dict)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}

{{- define "psi-agent.image" -}}
{{- $repository := required "image.repository is empty: no registry publishes an image of psi-agent yet. Build one (docs/install.md), push it to your registry, and set --set image.repository=REGISTRY/psi-agent" .Values.image.repository -}}
{{- with .Values.global.imageRegistry | default .Values.image.registry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}
{{- end }}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* What all containers have. The pull policy is not Always, since the image of a version does not change. The image
has a digest only in the chart of a release, since no registry publishes it. */ -}}
{{- define "psi-agent.container" -}}
image: {{ include "psi-agent.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "psi-agent.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Where pods that read nothing of the host run, and as which user. dict "root" $ "values" MAP. */ -}}
{{- define "psi-agent.unprivilegedPod" -}}
{{- include "psi-agent.pullSecrets" .root }}
nodeSelector:
  kubernetes.io/os: linux
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- /* OpenShift assigns a user ID from the namespace's range. */}}
  {{- if not .root.Values.openshift.enabled }}
  runAsUser: 65534
  runAsGroup: 65534
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "psi-agent.egress" -}}
egress:
{{- if .Values.networkPolicy.apiServerPorts }}
- ports:
  {{- range .Values.networkPolicy.apiServerPorts }}
  - protocol: TCP
    port: {{ . }}
  {{- end }}
{{- else }}
- {}
{{- end }}
{{- end -}}

{{- /* dict "port" NAME "from" LIST: who may connect to a port; without a list, anyone. */ -}}
{{- define "psi-agent.ingress" -}}
ingress:
- ports:
  - protocol: TCP
    port: {{ .port }}
  {{- with .from }}
  from:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
