module psi-agent.io/tests/openshift/descheduler-operator

go 1.24

require github.com/openshift/cluster-kube-descheduler-operator v0.0.0-20260214173033-e860b7975c2c
