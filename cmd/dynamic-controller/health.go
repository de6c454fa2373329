package main

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/server/healthz"
)

// healthChecks contains the named checks of the probes. The checks send no requests.
type healthChecks struct {
	live  []healthz.HealthChecker // fail if the process must be restarted
	ready []healthz.HealthChecker // fail while the replica cannot lead with warm caches
	// other checks fail neither probe.
	other []healthz.HealthChecker
}

// newHealthChecks returns the checks of a replica that shuts down when ctx is cancelled.
func newHealthChecks(
	ctx context.Context, log logr.Logger, alive func() error, e *engines, other ...healthz.HealthChecker,
) healthChecks {
	return healthChecks{
		live: []healthz.HealthChecker{healthz.PingHealthz, check(log, "lease", alive)},
		ready: []healthz.HealthChecker{
			healthz.PingHealthz, check(log, "restmapper", e.checkMapper), check(log, "caches", e.checkCaches),
			healthz.NewShutdownHealthz(ctx.Done()),
		},
		other: other,
	}
}

// check returns a named check that logs each change in its error. Package healthz logs errors only through klog.
func check(log logr.Logger, name string, f func() error) healthz.HealthChecker {
	var mu sync.Mutex
	logged := "" // the last logged problem; guarded by mu
	return healthz.NamedCheck(name, func(*http.Request) error {
		err, problem := f(), ""
		if err != nil {
			problem = err.Error()
		}
		mu.Lock()
		defer mu.Unlock()
		if problem != "" && problem != logged {
			log.Info("Probe check failed", "check", name, "problem", problem)
		}
		logged = problem
		return err
	})
}

// handler serves the checks in the same way as Kubernetes components.
func (c healthChecks) handler() http.Handler {
	all := append(append([]healthz.HealthChecker{}, c.live...), c.ready[1:]...) // the ping occurs once
	mux := http.NewServeMux()
	healthz.InstallLivezHandler(mux, c.live...)
	healthz.InstallReadyzHandler(mux, c.ready...)
	healthz.InstallHandler(mux, append(all, c.other...)...)
	return mux
}

func (e *engines) checkMapper() error {
	if !e.mapper.HasSynced() {
		return errors.New("the kinds of the cluster have not been read yet")
	}
	return nil
}
