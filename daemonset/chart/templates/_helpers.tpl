{{- define "psi-agent.image" -}}
{{- $repository := required "image.repository is empty: no registry publishes an image of psi-agent yet. Build one (docs/install.md), push it to your registry, and set --set image.repository=REGISTRY/psi-agent" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* What all three containers have. */ -}}
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

{{- /* The user of pods that read nothing of the host. */ -}}
{{- define "psi-agent.unprivilegedUser" -}}
runAsNonRoot: true
{{- /* OpenShift assigns a user ID from the namespace's range. */}}
{{- if not .Values.openshift.enabled }}
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
