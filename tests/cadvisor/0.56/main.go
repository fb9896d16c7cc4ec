// cAdvisor as the kubelet of Kubernetes 1.36 embeds it: the same intervals, metrics and labels,
// without the handlers of container runtimes, which nothing here would answer. Prints where it
// serves.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
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

// Always all six, as the kubelet has them; without a runtime only the id is known.
func labels(c *info.ContainerInfo) map[string]string {
	return map[string]string{
		"container": "", "id": c.Name, "image": "", "name": "", "namespace": "", "pod": "",
	}
}

func main() {
	address := flag.String("listen-address", "127.0.0.1:0", "where to serve /metrics")
	prefix := flag.String("prefix", "/kubepods", "prefix of the cgroups that are reported beside the root")
	// cAdvisor's own default of 1 s is not the kubelet's.
	_ = flag.Set("housekeeping_interval", "10s")
	flag.Parse()

	included := container.MetricSet{
		container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}, container.DiskIOMetrics: {},
		container.DiskUsageMetrics: {}, container.NetworkUsageMetrics: {}, container.AppMetrics: {},
		container.ProcessMetrics: {}, container.OOMMetrics: {}, container.PressureMetrics: {},
	}
	interval, dynamic := 15*time.Second, true
	housekeeping := manager.HousekeepingConfig{Interval: &interval, AllowDynamic: &dynamic}
	m, err := manager.New(memory.New(2*time.Minute, nil), sysfs.NewRealSysFs(), housekeeping, included,
		http.DefaultClient, []string{*prefix}, nil, "", 0)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Start(); err != nil {
		log.Fatal(err)
	}
	options := v2.RequestOptions{IdType: v2.TypeName, Count: 1, Recursive: true}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewPrometheusCollector(m, labels, included, clock.RealClock{}, options))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}
