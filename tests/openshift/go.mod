module psi-agent.io/tests/openshift

go 1.24

require github.com/openshift/api v0.0.0-20250313134101-8a7efbfb5316
