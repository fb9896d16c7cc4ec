"""Validates rendered objects against the OpenAPI definitions of a Kubernetes version: fields must exist and have
the right type. Kinds of other projects (Prometheus Operator, OpenShift) have no definition and are listed.
usage: validate.py SWAGGER.json OBJECTS.yaml"""

import json
import sys

import jsonschema
import yaml

# Kinds without a definition in Kubernetes.
OTHERS = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "SecurityContextConstraints"}
# Values that YAML has as text or number.
EITHER = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}


def main() -> None:
    with open(sys.argv[1]) as file:
        definitions = json.load(file)["definitions"] | EITHER
    kinds = {
        (kind["group"], kind["version"], kind["kind"]): name
        for name, definition in definitions.items()
        for kind in definition.get("x-kubernetes-group-version-kind", [])
    }
    for definition in definitions.values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    with open(sys.argv[2]) as file:
        objects = [one for one in yaml.safe_load_all(file) if one]
    errors, checked = [], 0
    for one in objects:
        group, _, version = one["apiVersion"].rpartition("/")
        name = kinds.get((group, version, one["kind"]))
        if name is None:
            if one["kind"] not in OTHERS:
                errors.append(f"{one['apiVersion']} {one['kind']}: not in this version")
            continue
        schema = {"$ref": f"#/definitions/{name}", "definitions": definitions}
        found = jsonschema.Draft4Validator(schema).iter_errors(one)
        errors += [f"{one['kind']} {one['metadata']['name']}: {error.json_path}: {error.message[:200]}" for error in found]
        checked += 1
    if checked < 10:
        errors.append(f"only {checked} objects")
    sys.exit("\n".join(errors) or 0)


main()
