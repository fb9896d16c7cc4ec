// Prints the custom resource definitions of KubeVirt as a list, as its operator makes them.
package main

import (
	"encoding/json"
	"log"
	"os"

	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

// What virt-controller watches: it waits for all of them before it works.
var makers = []func() (*extv1.CustomResourceDefinition, error){
	components.NewKubeVirtCrd,
	components.NewMigrationPolicyCrd,
	components.NewPresetCrd,
	components.NewReplicaSetCrd,
	components.NewVirtualMachineBackupCrd,
	components.NewVirtualMachineBackupTrackerCrd,
	components.NewVirtualMachineCloneCrd,
	components.NewVirtualMachineClusterInstancetypeCrd,
	components.NewVirtualMachineClusterPreferenceCrd,
	components.NewVirtualMachineCrd,
	components.NewVirtualMachineExportCrd,
	components.NewVirtualMachineInstanceCrd,
	components.NewVirtualMachineInstanceMigrationCrd,
	components.NewVirtualMachineInstancetypeCrd,
	components.NewVirtualMachinePoolCrd,
	components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineRestoreCrd,
	components.NewVirtualMachineSnapshotContentCrd,
	components.NewVirtualMachineSnapshotCrd,
}

func main() {
	var definitions []any
	for _, maker := range makers {
		definition, err := maker()
		if err != nil {
			log.Fatal(err)
		}
		// The type has a status even when it is empty, which the API server refuses.
		definitions = append(definitions, map[string]any{
			"apiVersion": definition.APIVersion, "kind": definition.Kind,
			"metadata": definition.ObjectMeta, "spec": definition.Spec,
		})
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": definitions}
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		log.Fatal(err)
	}
}
