package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Controller provides the status of the served types. *dynamiccontroller.DynamicController implements it.
type Controller interface {
	Status() []dynamiccontroller.TypeStatus
}

// NewStatus returns a collector that reads the status of the controller on each scrape. It ignores types that belong to
// shards of other processes, so that the number of series depends on the types that this process serves or watches.
func NewStatus(controller Controller, opts ...Option) prometheus.Collector {
	s := &status{controller: controller, options: newOptions(opts)}
	gauge := func(name, help string, more ...string) *prometheus.Desc {
		desc := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, s.options.labels(more...), nil)
		s.all = append(s.all, desc)
		return desc
	}
	s.objects = gauge("objects", "Number of objects in the cache.")
	s.bytes = gauge("cache_bytes", "Approximate memory used by the objects in the cache.")
	s.waiting = gauge("queue_items", "Number of objects in the queue, by lane: live, background, delayed or "+
		"settling.", "lane")
	s.oldest = gauge("queue_oldest_seconds", "How long the object at the head of the queue has waited.")
	s.running = gauge("handlers_running", "Number of running handlers.")
	s.failing = gauge("objects_failing", "Number of objects whose last reconcile failed and will be retried.")
	s.parked = gauge("objects_parked", "Number of objects that are not retried until their next event.")
	s.states = gauge("type_state", "The value is 1 for the current state of the type's watch. Without type labels, it is "+
		"the number of types in the state.", "state")
	s.secondaryStates = gauge("secondary_watches", "Number of watches for children and other related objects, by state.",
		"state")
	s.secondaryObjects = gauge("secondary_objects", "Number of children and other related objects in the caches. "+
		"A cache that several types share counts for each of them.")
	s.unusable = gauge("objects_unusable", "Number of objects that were received but cannot be used, for example because "+
		"they have no name.")
	s.secondaryUnusable = gauge("secondary_objects_unusable", "Number of children and other related objects that were "+
		"received but cannot be used. A watch that several types share counts for each of them.")
	s.secondaryBytes = gauge("secondary_cache_bytes", "Approximate memory used by children and other related objects. "+
		"A cache that several types share counts for each of them.")
	return s
}

type status struct {
	controller Controller
	options    options

	objects, bytes, waiting, oldest, running, failing, parked, states *prometheus.Desc
	secondaryStates, secondaryObjects, secondaryBytes                 *prometheus.Desc
	unusable, secondaryUnusable                                       *prometheus.Desc

	all []*prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (s *status) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range s.all {
		to <- desc
	}
}

// Collect implements [prometheus.Collector].
func (s *status) Collect(to chan<- prometheus.Metric) {
	var types []dynamiccontroller.TypeStatus
	for _, t := range s.controller.Status() {
		if !t.OtherShard {
			types = append(types, t)
		}
	}
	if s.options.withoutTypeLabels {
		s.collect(to, schema.GroupVersionResource{}, types...)
		return
	}
	for _, t := range types {
		s.collect(to, t.GVR, t)
	}
}

// collect sends the metrics aggregated over the given types.
func (s *status) collect(to chan<- prometheus.Metric, gvr schema.GroupVersionResource,
	types ...dynamiccontroller.TypeStatus,
) {
	set := func(desc *prometheus.Desc, value float64, more ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, s.options.values(gvr, more...)...)
	}
	sum := sumOf(types)
	set(s.objects, float64(sum.Objects))
	set(s.bytes, float64(sum.Bytes))
	set(s.waiting, float64(sum.Live), "live")
	set(s.waiting, float64(sum.Background), "background")
	set(s.waiting, float64(sum.Delayed), "delayed")
	set(s.waiting, float64(sum.Settling), "settling")
	set(s.oldest, sum.Oldest.Seconds())
	set(s.running, float64(sum.Running))
	set(s.failing, float64(sum.Failing))
	set(s.parked, float64(sum.Parked))
	for state, n := range sum.states {
		set(s.states, float64(n), string(state))
	}
	for state, n := range sum.secondaryStates {
		set(s.secondaryStates, float64(n), string(state))
	}
	set(s.secondaryObjects, float64(sum.secondaryObjects))
	set(s.secondaryBytes, float64(sum.secondaryBytes))
	set(s.unusable, float64(sum.Unusable))
	set(s.secondaryUnusable, float64(sum.secondaryUnusable))
}

// sum contains the aggregated status of several types. It uses only the numeric fields of the embedded status.
type sum struct {
	dynamiccontroller.TypeStatus
	states, secondaryStates map[dynamiccontroller.TypeState]int
	secondaryObjects        int
	secondaryUnusable       int
	secondaryBytes          int64
}

func sumOf(types []dynamiccontroller.TypeStatus) sum {
	s := sum{
		states: map[dynamiccontroller.TypeState]int{}, secondaryStates: map[dynamiccontroller.TypeState]int{},
	}
	for _, t := range types {
		s.Objects += t.Objects
		s.Bytes += t.Bytes
		s.Unusable += t.Unusable
		s.Live += t.Live
		s.Background += t.Background
		s.Delayed += t.Delayed
		s.Settling += t.Settling
		s.Oldest = max(s.Oldest, t.Oldest)
		s.Running += t.Running
		s.Failing += t.Failing
		s.Parked += t.Parked
		s.states[t.State]++
		for _, secondary := range t.Secondaries {
			s.secondaryStates[secondary.State]++
			s.secondaryObjects += secondary.Objects
			s.secondaryUnusable += secondary.Unusable
			s.secondaryBytes += secondary.Bytes
		}
	}
	return s
}
