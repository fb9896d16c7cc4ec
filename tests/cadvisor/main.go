// cAdvisor as the kubelet embeds it: the same library, metric set, intervals and labels, without
// the kubelet around it. It serves /metrics on loopback for the tests to compare with.
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/google/cadvisor/cache/memory"
	"github.com/google/cadvisor/container"
	info "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/google/cadvisor/manager"
	"github.com/google/cadvisor/metrics"
	"github.com/google/cadvisor/utils/sysfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/clock"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where to serve /metrics")
	prefix := flag.String("prefix", "/kubepods", "the raw cgroups to export, besides the root")
	flag.Parse()

	kinds := container.MetricSet{
		container.CpuUsageMetrics: struct{}{}, container.MemoryUsageMetrics: struct{}{},
		container.DiskIOMetrics: struct{}{}, container.NetworkUsageMetrics: struct{}{},
		container.AppMetrics: struct{}{}, container.ProcessMetrics: struct{}{},
		container.OOMMetrics: struct{}{}, container.PressureMetrics: struct{}{},
		container.DiskUsageMetrics: struct{}{},
	}
	interval, dynamic := 15*time.Second, true
	housekeeping := manager.HousekeepingConfig{Interval: &interval, AllowDynamic: &dynamic}
	cache := memory.New(2*time.Minute, nil)
	cadvisor, err := manager.New(cache, sysfs.NewRealSysFs(), housekeeping, kinds, http.DefaultClient,
		[]string{*prefix}, nil, "", 0)
	if err != nil {
		log.Fatal(err)
	}
	if err := cadvisor.Start(); err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	options := v2.RequestOptions{IdType: v2.TypeName, Count: 1, Recursive: true}
	registry.MustRegister(metrics.NewPrometheusCollector(cadvisor, labels, kinds, clock.RealClock{}, options))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	log.Fatal(http.ListenAndServe(*listen, nil))
}

// The kubelet's six; what only it knows of pods is empty here.
func labels(c *info.ContainerInfo) map[string]string {
	set := map[string]string{
		"container": "", metrics.LabelID: c.Name, metrics.LabelImage: c.Spec.Image,
		metrics.LabelName: "", "namespace": "", "pod": "",
	}
	if len(c.Aliases) > 0 {
		set[metrics.LabelName] = c.Aliases[0]
	}
	return set
}
