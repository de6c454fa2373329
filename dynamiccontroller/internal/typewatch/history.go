package typewatch

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// histories counts the histories of resourceVersions. A new history begins when the storage of an API server is
// restored from a backup: versions from before and after the restore cannot be compared, and a watch from an earlier
// version misses changes without an error.
//
// The first watch whose list of the most recent version is older than a version it has seen begins the new history. The
// other watches would not notice: those of built-in types are resumed after a lost connection, and types that rarely
// change may have seen no version that is too new. Therefore, all watches are relisted. A storage can contain any
// number of groups, and clients cannot find out which, so that watches of other storages are relisted, too.
type histories struct {
	mu     sync.Mutex // guards the fields below
	global int64
	groups map[string]*groupHistory
}

// groupHistory belongs to the types of one group.
type groupHistory struct {
	own     int64         // histories that concern only this group
	limiter *rate.Limiter // see historiesPerGroup
}

const (
	// historyRelistsPerSecond limits the relists of all watches after a new history began, and historyRelistBurst is the
	// number of the first ones, which are not delayed. 500 types are relisted within ten seconds.
	historyRelistsPerSecond = 50
	historyRelistBurst      = 20
	// historyRelistJitter is the longest time before the first of these relists, so that replicas do not relist together.
	historyRelistJitter = time.Second
	// historiesPerGroup and historyPeriod limit how often a group can begin a history for all groups. A server that does
	// not store its versions, or whose replicas count them separately, begins histories all the time, but only for the
	// types of its group.
	historiesPerGroup = 2
	historyPeriod     = 10 * time.Minute
)

// of returns the number of the current history of a group.
func (h *histories) of(group string) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.global + h.groupLocked(group).own
}

// total returns a number that grows whenever a history begins.
func (h *histories) total() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	total := h.global
	for _, g := range h.groups {
		total += g.own
	}
	return total
}

func (h *histories) groupLocked(group string) *groupHistory {
	g := h.groups[group]
	if g == nil {
		g = &groupHistory{limiter: rate.NewLimiter(rate.Every(historyPeriod), historiesPerGroup)}
		if h.groups == nil {
			h.groups = map[string]*groupHistory{}
		}
		h.groups[group] = g
	}
	return g
}

// begin begins a new history, unless one has begun for the group after the given one. It returns whether the history is
// new, and whether it also concerns the types of other groups.
func (h *histories) begin(after int64, group string) (isNew, everywhere bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groupLocked(group)
	if after < h.global+g.own {
		return false, false
	}
	if everywhere = g.limiter.Allow(); everywhere {
		h.global++
	} else {
		g.own++
	}
	return true, everywhere
}

// History returns a number that grows when a restore is noticed. It is zero until then.
func (p *Pool) History() int64 { return p.histories.total() }

// beginHistory is called for a reflector whose list is older than its objects, which belong to the given history. It
// relists all watches from earlier histories. The reflector's own list, if it is complete, belongs to the new history.
func (p *Pool) beginHistory(r *reflector, after int64) {
	group := r.watch.key.GVR.Group
	isNew, everywhere := p.histories.begin(after, group)
	if !isNew {
		return
	}
	r.watch.log.Info("ResourceVersions went back, listing again", "allTypes", everywhere)
	p.mu.Lock()
	defer p.mu.Unlock()
	var first, others []*reflector
	for _, places := range p.byType {
		for _, at := range places {
			switch {
			case !everywhere && at.watch.key.GVR.Group != group:
			case hasSecondaryLocked(at):
				first = append(first, at.watch.reflectors...)
			default:
				others = append(others, at.watch.reflectors...)
			}
		}
	}
	if session := p.session; session != nil {
		session.watches.Go(func() { p.relistAll(session.ctx, first, others) })
	}
}

// relistAll relists the reflectors whose objects belong to an earlier history.
func (p *Pool) relistAll(ctx context.Context, parts ...[]*reflector) {
	timer := time.NewTimer(rand.N(historyRelistJitter))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	for _, reflectors := range parts {
		rand.Shuffle(len(reflectors), func(i, j int) { reflectors[i], reflectors[j] = reflectors[j], reflectors[i] })
		for _, r := range reflectors {
			if !r.isOutdated() {
				continue
			}
			if p.historyRelists.Wait(ctx) != nil {
				return
			}
			if r.isOutdated() {
				r.loop.NewHistory()
			}
		}
	}
}

// isOutdated reports whether the reflector's objects belong to an earlier history.
func (r *reflector) isOutdated() bool {
	return r.history.Load() < r.watch.history()
}

const (
	// checkInterval is the minimum time between two checks.
	checkInterval = 10 * time.Second
	// checkLimit is the time after which a check is given up.
	checkLimit = 2 * time.Minute
)

// checkRetry returns the delays before a failed check is repeated.
func checkRetry() wait.DelayFunc {
	return wait.Backoff{Duration: time.Second, Cap: 5 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5}.DelayFunc()
}

// connectionLost is called when a watch was closed early, or when the server cannot be reached. Watches of types whose
// group has a dot are then relisted, and notice a restore. The other ones are resumed. Therefore, one of them checks
// the most recent version, with a list of one object. It is the one that has seen the newest version. The types whose
// group has no dot usually share a storage. If the API server stores some of them elsewhere (--etcd-servers-overrides),
// only the restore of one storage is noticed.
func (p *Pool) connectionLost(w *watch) {
	if w.isListedEarly() || !p.checks.Allow() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	session := p.session
	if session == nil || p.checking {
		return
	}
	var newest *reflector
	for _, places := range p.byType {
		for _, at := range places {
			if at.watch.isListedEarly() {
				continue
			}
			for _, r := range at.watch.reflectors {
				if newest == nil || r.newest().isNewer(newest.newest()) {
					newest = r
				}
			}
		}
	}
	if newest == nil {
		return
	}
	p.checking = true
	history, seen := newest.history.Load(), newest.newest()
	session.watches.Go(func() {
		p.check(session.ctx, newest, history, seen)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.checking = false
	})
}

// isListedEarly reports whether the watch is followed by a list after it was closed early.
func (w *watch) isListedEarly() bool { return strings.Contains(w.key.GVR.Group, ".") }

// newest returns the newest version that the reflector has received, or none if its versions cannot be compared.
func (r *reflector) newest() version {
	newest := max(version(r.position.Load()), version(r.observed.Load()))
	if newest == unordered {
		return none
	}
	return newest
}

// check begins a new history if the most recent version is older than the one that the reflector has seen.
func (p *Pool) check(ctx context.Context, r *reflector, history int64, seen version) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	for retry := checkRetry(); ; {
		list, err := r.mostRecent(ctx)
		if err == nil {
			if current := versionNumber(list.ResourceVersion); current != none && seen.isNewer(current) {
				p.beginHistory(r, history)
			}
			return
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
			return
		}
		timer := time.NewTimer(retry())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// mostRecent lists one object, for the most recent version. A panic of the client is returned as an error.
func (r *reflector) mostRecent(ctx context.Context) (list metav1.ListMeta, err error) {
	mistake := protect.Isolate(func() {
		options := listwatch.RequestOptions{ListOptions: metav1.ListOptions{Limit: 1}}
		list, err = r.requests.List(ctx, options, func(runtime.Object) {})
	})
	if mistake != nil {
		r.watch.log.Error(mistake, "Request panicked", "request", "check", "stack", string(mistake.Stack))
		return list, mistake
	}
	return list, err
}
