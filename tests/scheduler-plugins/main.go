// A kube-scheduler with Trimaran's LoadVariationRiskBalancing of scheduler-plugins.
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
