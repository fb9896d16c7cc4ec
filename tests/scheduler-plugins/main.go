// A kube-scheduler with one more plugin: Trimaran's LoadVariationRiskBalancing, as scheduler-plugins
// has it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/loadvariationriskbalancing"
)

func main() {
	plugin := app.WithPlugin(loadvariationriskbalancing.Name, loadvariationriskbalancing.New)
	os.Exit(cli.Run(app.NewSchedulerCommand(plugin)))
}
