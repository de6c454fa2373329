package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	defaultElection = election{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	quickElection   = election{Duration: 3 * time.Second, RenewDeadline: 2 * time.Second,
		RetryPeriod: 500 * time.Millisecond}
)

// endings are the ways to make the leader exit.
var endings = []struct {
	name   string
	signal syscall.Signal
}{
	{"graceful", syscall.SIGTERM},
	{"crash", syscall.SIGKILL},
}

const scenarioReplica = "replica"

func init() { scenarios[scenarioReplica] = beReplica }

var (
	failoverTypes   = flag.Int("failover-types", 100, "types that the replicas serve in the failover benchmark")
	failoverObjects = flag.Int("failover-objects", 100, "objects of each type in the failover benchmark")
)

// BenchmarkFailover measures the time without reconciles after the leader exits, and the next leader's requests.
func BenchmarkFailover(b *testing.B) {
	c := shared.Cluster(b)
	f := manyTypes(*failoverTypes, *failoverObjects)
	if err := f.create(b.Context(), c.Config()); err != nil {
		b.Fatal(err)
	}
	fmt.Printf("failover: %d workers, %s\n", workers, f)
	for _, e := range []election{quickElection, defaultElection} {
		for _, ending := range endings {
			for _, contender := range contenders {
				b.Run(fmt.Sprintf("engine=%s/end=%s/lease=%s", contender.name, ending.name, e.Duration), func(b *testing.B) {
					name := fmt.Sprintf("%s, %s, %s", contender.name, ending.name, e)
					j := job{Scenario: scenarioReplica, Engine: contender.name, Kubeconfig: c.Kubeconfig(), Fixture: f}
					reportMedians(b, func() (measures, error) {
						m, err := failover(b.Context(), c.Config(), j, e, ending.signal)
						if err == nil {
							measured.add("failover", name, m)
						}
						return m, err
					})
				})
			}
		}
	}
}

// A warm standby must not send any LIST or WATCH requests when it is promoted. The test also promotes a cold standby,
// to verify that such requests are counted.
func TestL5_PromotionSendsNoListOrWatch(t *testing.T) {
	c := shared.Cluster(t)
	f := manyTypes(5, 5)
	if err := f.create(t.Context(), c.Config()); err != nil {
		t.Fatal(err)
	}
	for _, contender := range contenders {
		t.Run(contender.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTimeout)
			defer cancel()
			ms, err := failover(ctx, c.Config(), job{Scenario: scenarioReplica, Engine: contender.name,
				Kubeconfig: c.Kubeconfig(), Fixture: f}, quickElection, syscall.SIGTERM)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range ms {
				t.Logf("%s %s", m.Unit, m)
				isCount := m.Unit == "LISTs" || m.Unit == "WATCHes"
				if contender.name == "ours-warm" && isCount && m.Value != 0 {
					t.Errorf("got %v %s, want none", m.Value, m.Unit)
				}
				if contender.name != "ours-warm" && m.Unit == "WATCHes" && m.Value < float64(len(f.Objects)) {
					t.Errorf("got %v WATCHes from a cold standby, want at least %d", m.Value, len(f.Objects))
				}
			}
		})
	}
}

// failover starts two replicas, sends a signal to the leader while objects of the first type are written, and measures
// the times until the other replica has reconciled all objects.
func failover(
	ctx context.Context, config *rest.Config, j job, e election, sig syscall.Signal,
) (_ measures, err error) {
	e.Lease = fmt.Sprintf("bench-%d", time.Now().UnixNano())
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	old, err := startReplica(ctx, j, e, nil)
	if err != nil {
		return nil, err
	}
	defer old.kill()
	if _, err := old.wait(ctx, eventAll); err != nil {
		return nil, err
	}
	next, err := startReplica(ctx, j, e, nil)
	if err != nil {
		return nil, err
	}
	defer next.kill()
	if _, err := next.wait(ctx, eventStandby); err != nil {
		return nil, err
	}

	r := &run{job: j, client: client}
	r.Fixture.Objects = r.Fixture.Objects[:1]
	defer func() {
		leases := client.Resource(schema.GroupVersionResource{
			Group: "coordination.k8s.io", Version: "v1", Resource: "leases",
		})
		err = errors.Join(err, leases.Namespace(namespace).Delete(ctx, e.Lease, metav1.DeleteOptions{}))
	}()
	load := r.writeSlowly(ctx, r.Fixture.types()[0])
	defer func() { err = errors.Join(err, load()) }()
	if _, err := old.wait(ctx, eventWrote); err != nil {
		return nil, err
	}
	before, err := countRequests(ctx, config, j.Fixture.Group)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(rand.N(2 * e.RetryPeriod)): // a random moment between two attempts of the standby
	}
	ended := time.Now()
	if err := old.cmd.Process.Signal(sig); err != nil {
		return nil, err
	}
	leads, err := next.wait(ctx, eventLeads)
	if err != nil {
		return nil, err
	}
	first, err := next.wait(ctx, eventFirst)
	if err != nil {
		return nil, err
	}
	all, err := next.wait(ctx, eventAll)
	if err != nil {
		return nil, err
	}
	after, err := countRequests(ctx, config, j.Fixture.Group)
	if err != nil {
		return nil, err
	}
	<-old.exited
	wrote := old.last(eventWrote)
	return measures{
		{"failover-ns", float64(first.Sub(wrote))},
		{"end-to-lead-ns", float64(leads.Sub(ended))},
		{"lead-to-first-ns", float64(first.Sub(leads))},
		{"lead-to-all-ns", float64(all.Sub(leads))},
		{"LISTs", after.lists - before.lists},
		{"WATCHes", after.watches - before.watches},
	}, nil
}

// writeSlowly writes to the objects of the type, one after another, until stop is called.
func (r *run) writeSlowly(ctx context.Context, gvr schema.GroupVersionResource) (stop func() error) {
	const interval = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for n := 0; ; n++ {
			patch := fmt.Appendf(nil, `{"spec":{"n":%d}}`, time.Now().UnixNano())
			_, err := r.client.Resource(gvr).Namespace(namespace).Patch(ctx, nameOf(n%r.Fixture.Objects[0]),
				types.MergePatchType, patch, metav1.PatchOptions{})
			if ctx.Err() != nil {
				err = nil
			}
			if err != nil || ctx.Err() != nil {
				failed <- err
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() error {
		cancel()
		return <-failed
	}
}

// requests contains the numbers of requests for the types of a group.
type requests struct{ lists, watches, gets, writes float64 }

var isWrite = regexp.MustCompile(`verb="(PUT|POST|PATCH|APPLY|DELETE)"`)

// countRequests reads the numbers from the API server's metrics. Open and closed watches are counted by different
// metrics.
func countRequests(ctx context.Context, config *rest.Config, group string) (n requests, err error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return n, err
	}
	text, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return n, err
	}
	for line := range strings.Lines(string(text)) {
		isTotal := strings.HasPrefix(line, "apiserver_request_total{")
		isOpen := strings.HasPrefix(line, "apiserver_longrunning_requests{")
		if !isTotal && !isOpen || !strings.Contains(line, `group="`+group+`"`) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			return n, err
		}
		switch {
		case strings.Contains(line, `verb="WATCH"`):
			n.watches += value
		case isTotal && strings.Contains(line, `verb="LIST"`):
			n.lists += value
		case isTotal && strings.Contains(line, `verb="GET"`):
			n.gets += value
		case isTotal && isWrite.MatchString(line):
			n.writes += value
		}
	}
	return n, nil
}

// Events that a replica prints, one per line.
const (
	eventStandby = "standby" // The replica has observed a leader. If it is warm, its watches have synced.
	eventLeads   = "leads"   // The replica's term has started.
	eventFirst   = "first"   // The first handler call of the term has started.
	eventAll     = "all"     // All objects have been reconciled in the term.
	eventWrote   = "wrote"   // A handler has written.
)
