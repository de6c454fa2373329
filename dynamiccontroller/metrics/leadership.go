package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// Replica provides the leadership status of a replica. *replica.Replica implements it.
type Replica interface {
	Status() replica.Status
}

// NewLeadership returns a collector that reads the leadership status of the replica on each scrape.
func NewLeadership(r Replica) prometheus.Collector { return leadership{r} }

type leadership struct{ replica Replica }

var (
	leading = prometheus.NewDesc(namespace+"_leading", "The value is 1 if this replica leads, and 0 otherwise.", nil, nil)
	term    = prometheus.NewDesc(namespace+"_term",
		"The number of the current or last term of this replica. The number is 0 before the first term.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (l leadership) Describe(to chan<- *prometheus.Desc) {
	to <- leading
	to <- term
}

// Collect implements [prometheus.Collector].
func (l leadership) Collect(to chan<- prometheus.Metric) {
	s := l.replica.Status()
	leads := 0.0
	if s.Leading {
		leads = 1
	}
	to <- prometheus.MustNewConstMetric(leading, prometheus.GaugeValue, leads)
	to <- prometheus.MustNewConstMetric(term, prometheus.GaugeValue, float64(s.Term))
}
