module psi-agent.io/tests/prometheus

go 1.26.0

require github.com/prometheus/prometheus v0.316.0

replace cloud.google.com/go => cloud.google.com/go v0.123.0
