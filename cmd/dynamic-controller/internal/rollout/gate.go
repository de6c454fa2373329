package rollout

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"time"
)

// tolerance is the number of instances that must have moved successfully for each failing instance.
const tolerance = 10

// progressDeadline is how long a rollout can wait for instances to become ready before it is reported as stalled. The
// deadline applies only while no instances are expected to move. It equals the default progressDeadlineSeconds of
// Deployments.
const progressDeadline = 10 * time.Minute

// stuckAfter is how long a rollout waits for the instances that are allowed to move. If none of them moves during this
// time, they are considered stuck, and further instances are allowed to move.
const stuckAfter = time.Minute

// Health describes the state of an instance. A higher value is better.
type Health int

// The states of an instance.
const (
	Failing Health = iota
	Waiting
	Ready
)

// Instance is the state of an instance, according to its status.
type Instance struct {
	Key string // "namespace/name"
	// Revision is the status.revision of the instance, which other clients can write: see [Gate.RevisionOf]. It is empty
	// before the first reconcile.
	Revision string
	Created  time.Time
	Health   Health
	Reason   string // why the instance is Failing or Waiting
	// Regressed reports whether the instance is less healthy than before it moved to its revision.
	Regressed bool
	// Changed is the time at which the instance became ready or regressed.
	Changed time.Time
	Paused  bool
}

// Revision identifies the revision to roll out.
type Revision struct {
	Name string
	// Same lists other revisions with the same templates. Instances with these revisions move without delay.
	Same []string
	// Base is the last revision to which all instances had moved. It is empty if it is unknown. It equals Name if all
	// instances have already moved to the newest revision.
	Base string
	// Older lists the revisions that instances can still have, the most important one first. It contains Base, unless Base
	// equals Name.
	Older []string
	// Since is the time at which the revision was accepted. Instances that were created later do not count as evidence
	// that existing instances can be updated.
	Since time.Time
}

// Everyone is the number of admitted instances to pass to [Gate.SetRecorded] if all instances have moved.
const Everyone = math.MaxInt32

// Progress describes the state of a rollout.
type Progress struct {
	// Total is the number of instances that are not paused. Updated is the number of these instances that have moved.
	// Paused is the number of paused instances.
	Total, Updated, Paused int
	// Stopped reports whether failing instances prevent further instances from moving.
	Stopped bool
	// Stalled reports whether no instance is expected to move and the rollout has been waiting for more than ten minutes
	// for instances to become ready.
	Stalled bool
	// Recheck is the next time at which the progress can change even if no instance changes. It is zero if there is no
	// such time.
	Recheck time.Time
	// Stuck lists two kinds of instances, ordered by key: those that have been allowed to move for a minute but have not
	// moved, unless any instance has moved within the last minute, and those that have moved, but whose statuses have
	// described them before the move for a minute.
	Stuck []Instance
	// Failing and Waiting list the instances that are less healthy than before they moved, ordered by key.
	Failing, Waiting []Instance
}

// Complete reports whether all instances that are not paused have the newest revision.
func (p Progress) Complete() bool { return p.Updated == p.Total }

// Gate decides which instances of a Blueprint are reconciled with the newest revision. It is safe for concurrent use.
type Gate struct {
	revision Revision

	mu       sync.Mutex // guards the fields below
	surveyed bool
	progress Progress
	inUse    map[string]int // number of instances by revision
	// admitted contains the instances that are allowed to move. The map is replaced, never modified.
	admitted  map[string]admission
	restarted time.Time // last time at which an instance moved or RestartTimer was called
	// allowed is the number of instances that were allowed to move, including those that other processes have recorded.
	// own is the number of those that this process allowed. recorded is the last known record.
	allowed, own, recorded int
	// insufficient reports whether the rollout would be stopped if only recorded instances had been allowed to move.
	insufficient bool
	// moved contains the instances that have moved. The value reports whether this process allowed it. When all instances
	// have moved, done is set and moved is dropped.
	moved map[string]bool
	done  bool
	// left contains the instances that had not moved when done was set, because they were paused or stuck.
	left map[string]bool
	// pending contains the instances that have moved, but whose statuses describe them before the move. It maps their keys
	// to the times since which this is known.
	pending map[string]time.Time
}

// admission describes an instance that is allowed to move.
type admission struct {
	since time.Time
	// failing reports whether the instance was failing when it was allowed. Its status can change before Moved is called.
	// It must not make room for another instance by this.
	failing bool
}

// New returns a Gate for a revision. Existing instances do not move before the first call to Survey.
func New(revision Revision) *Gate { return &Gate{revision: revision} }

// IsOpen reports whether the instance with the given key, status.revision and creation time is reconciled with the
// newest revision.
func (g *Gate) IsOpen(key, revision string, created time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, is := g.admitted[key]
	return is || g.hasMovedLocked(key, revision, created)
}

// HasMoved reports whether the instance with the given key and creation time has moved, and whether the status that
// contains the given revision describes it after the move. A status from a cache can be older. If this process allowed
// the instance to move, HasMoved returns false until Moved is called, whatever the status contains.
func (g *Gate) HasMoved(key, revision string, created time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hasMovedLocked(key, revision, created) && g.claims(revision, created)
}

// hasTemplatesOf reports whether the newest revision has the same templates as the named one. It returns true for the
// empty name, which is the revision of a new instance.
func (g *Gate) hasTemplatesOf(revision string) bool {
	return revision == "" || revision == g.revision.Name || slices.Contains(g.revision.Same, revision)
}

// claims reports whether an instance has moved, or is new, according to its status. An instance that was created before
// the rollout and has no revision has the base, if the base is known.
func (g *Gate) claims(revision string, created time.Time) bool {
	if revision == "" && g.revision.Base != "" && g.revision.Base != g.revision.Name {
		return !created.Before(g.revision.Since)
	}
	return g.hasTemplatesOf(revision)
}

// hasMovedLocked reports whether an instance has moved. Once it has, its status.revision has no effect.
func (g *Gate) hasMovedLocked(key, revision string, created time.Time) bool {
	if _, has := g.moved[key]; has || g.done && !g.left[key] {
		return true
	}
	_, moves := g.admitted[key]
	return !moves && g.claims(revision, created)
}

// isProvenLocked reports whether an instance has moved because this process allowed it.
func (g *Gate) isProvenLocked(key string) bool { return g.moved[key] || g.done && !g.left[key] }

// Moved must be called when the status of an instance has been written after a reconcile with the given revision.
func (g *Gate) Moved(key, revision string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if revision != g.revision.Name {
		return
	}
	_, admitted := g.admitted[key]
	if admitted {
		delete(g.left, key)
	}
	g.setMovedLocked(key, admitted)
}

func (g *Gate) setMovedLocked(key string, admitted bool) {
	if g.done {
		return
	}
	if g.moved == nil {
		g.moved = map[string]bool{}
	}
	g.moved[key] = g.moved[key] || admitted
}

// Admitted returns the number of instances that have been allowed to move. record reports whether the caller must store
// the number for later processes, because it has doubled since it was stored, or because a later process would stop the
// rollout otherwise.
func (g *Gate) Admitted() (n int, record bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allowed, g.allowed > g.recorded && (g.allowed >= 2*g.recorded || g.insufficient)
}

// SetRecorded sets the number of instances that have been allowed to move, as stored by this process or an earlier one.
// It must be called before Survey.
func (g *Gate) SetRecorded(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recorded, g.allowed = n, max(g.allowed, n)
}

// RevisionOf returns the revision with which an instance is reconciled until it moves. Everyone who can write the
// status of the instance can change status.revision. It is therefore only a hint to which of the revisions in
// Revision.Older the instance has: any other revision stands for Revision.Base. If the base is unknown, RevisionOf
// returns the given revision, which cannot be used.
func (g *Gate) RevisionOf(key, revision string, created time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.revisionOfLocked(key, revision, created)
}

func (g *Gate) revisionOfLocked(key, revision string, created time.Time) string {
	hasMoved := g.hasMovedLocked(key, revision, created)
	switch {
	case hasMoved && g.hasTemplatesOf(revision):
		return revision
	case hasMoved:
		return g.revision.Name
	case slices.Contains(g.revision.Older, revision) || len(g.revision.Older) == 0 || g.revision.Base == "":
		return revision
	}
	return g.revision.Base
}

// IsDone reports whether all instances have moved, except those that were paused or stuck at that time. It stays true.
func (g *Gate) IsDone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.done
}

// RestartTimer gives the instances that are allowed to move another minute. It must be called when all instances are
// resumed after a pause.
func (g *Gate) RestartTimer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.restarted = time.Now()
}

// Since returns the time at which the revision was accepted.
func (g *Gate) Since() time.Time { return g.revision.Since }

// RollsOut reports whether the given revision is the newest one and some instances may still have an older revision.
func (g *Gate) RollsOut(revision string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return revision == g.revision.Name && (!g.surveyed || !g.progress.Complete())
}

// Progress returns the state of the rollout at the last survey. surveyed is false if there has been no survey.
func (g *Gate) Progress() (p Progress, surveyed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.progress, g.surveyed
}

// InUse reports whether any instance had the given revision at the last survey. It returns true before the first
// survey.
func (g *Gate) InUse(revision string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.surveyed || g.inUse[revision] > 0 &&
		(g.hasTemplatesOf(revision) || slices.Contains(g.revision.Older, revision))
}

// Outdated returns the revisions that instances had at the last survey and whose templates differ from those of the
// newest revision. They have the order of Revision.Older, followed by revisions that cannot be used.
func (g *Gate) Outdated() (revisions []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for revision := range g.inUse {
		if !g.hasTemplatesOf(revision) {
			revisions = append(revisions, revision)
		}
	}
	rank := func(revision string) int {
		if i := slices.Index(g.revision.Older, revision); i >= 0 {
			return i
		}
		return len(g.revision.Older)
	}
	slices.SortFunc(revisions, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	return revisions
}

// Survey updates the rollout with the state of all instances that are not being deleted. It returns the keys of the
// instances that are newly allowed to move. An instance remains allowed to move until it has moved, because some of its
// children may already have been updated.
func (g *Gate) Survey(instances []Instance) (admitted []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, restarted, now := g.admitted, g.restarted, time.Now()
	s := survey{
		inUse: map[string]int{}, next: map[string]admission{}, left: map[string]bool{}, pending: map[string]time.Time{},
	}
	for _, i := range instances {
		g.addLocked(&s, i, now)
	}
	next := s.next
	if len(next) < len(before) {
		restarted = now
	}
	p := s.Progress
	for _, i := range s.moving {
		if now.Sub(restarted) >= stuckAfter && now.Sub(next[i.Key].since) >= stuckAfter {
			p.Stuck, s.left[i.Key] = append(p.Stuck, i), true
		}
	}
	stuck, awaited := len(p.Stuck), len(s.pending)-len(s.overwritten)
	p.Stuck = append(p.Stuck, s.overwritten...)
	for n := range p.Stuck {
		p.Stuck[n].Reason = "" // the reason does not explain why the instance is stuck
	}
	for _, list := range [][]Instance{p.Failing, p.Waiting, p.Stuck} {
		slices.SortFunc(list, func(a, b Instance) int { return cmp.Compare(a.Key, b.Key) })
	}
	stops := func(successes int) bool { return (len(p.Failing)+max(0, len(p.Stuck)-1))*tolerance > successes }
	successes, moved := s.believed(g.allowed - g.own)
	p.Stopped = !p.Complete() && stops(successes)
	if !p.Stopped {
		admit := func(keys []string, failing bool) {
			for _, key := range keys {
				if _, is := next[key]; !is {
					next[key] = admission{now, failing}
					admitted = append(admitted, key)
				}
			}
		}
		admit(g.first(s.healthy, max(1, successes)+stuck-awaited-len(p.Waiting)), false)
		admit(g.first(s.failing, max(1, moved)+stuck-awaited), true)
	}
	g.allowed, g.own = g.allowed+len(admitted), g.own+len(admitted)
	g.insufficient = !p.Stopped && stops(min(successes, g.recorded-s.unsuccessful()))
	p.setDeadline(now, s.changed, len(s.moving)+len(admitted)+awaited > stuck)

	if p.Updated+stuck == p.Total && !g.done {
		g.done, g.left, g.moved = true, s.left, nil
	}
	g.restarted = restarted
	g.surveyed, g.progress, g.inUse, g.admitted = true, p, s.inUse, next
	g.pending = s.pending
	return admitted
}

// addLocked adds an instance to a survey.
func (g *Gate) addLocked(s *survey, i Instance, now time.Time) {
	hasMoved, isProven := g.hasMovedLocked(i.Key, i.Revision, i.Created), g.isProvenLocked(i.Key)
	isCurrent := g.hasTemplatesOf(i.Revision)
	i.Revision = g.revisionOfLocked(i.Key, i.Revision, i.Created)
	admitted, moves := g.admitted[i.Key]
	switch {
	case hasMoved:
		g.setMovedLocked(i.Key, false)
	case i.Paused:
		s.left[i.Key] = true
		if moves {
			s.next[i.Key] = admission{now, admitted.failing}
		}
	case moves:
		s.next[i.Key], s.moving = admitted, append(s.moving, i)
	}
	if hasMoved && !isCurrent && !i.Paused && (moves || !g.done) {
		at, known := g.pending[i.Key]
		if !known {
			at = now
		}
		if s.pending[i.Key] = at; now.Sub(at) >= stuckAfter {
			s.overwritten = append(s.overwritten, i)
		}
	}
	if !hasMoved && !i.Paused {
		s.addUnmoved(i.Key, moves && admitted.failing || !moves && i.Health == Failing)
	}
	s.add(i, hasMoved, isProven, isCurrent, i.Created.After(g.revision.Since))
}

// setDeadline sets Stalled and Recheck. changed is the last time at which a moved instance became ready or regressed.
// moves reports whether instances are expected to move.
func (p *Progress) setDeadline(now, changed time.Time, moves bool) {
	deadline := changed.Add(progressDeadline)
	switch {
	case moves:
		p.Recheck = now.Add(stuckAfter)
	case p.Complete() || p.Stopped || len(p.Waiting) == 0:
	case now.Before(deadline):
		p.Recheck = deadline
	default:
		p.Stalled = true
	}
}

// survey summarizes the states of instances.
type survey struct {
	Progress
	inUse map[string]int
	// healthy and failing contain the keys of instances that have not moved, by their health when they were allowed to
	// move, or else by their current health.
	healthy, failing []string
	// proven counts the instances that this process allowed to move. claimed counts the other ones that have moved
	// according to their statuses.
	proven, claimed tally
	// next, left and pending replace Gate.admitted, Gate.left and Gate.pending. moving contains the instances in next that
	// are not paused, and overwritten those that have been pending for too long.
	next                map[string]admission
	pending             map[string]time.Time
	left                map[string]bool
	moving, overwritten []Instance
	changed             time.Time // last time at which a moved instance became ready or regressed
}

// tally counts instances that existed before the rollout and have moved.
type tally struct{ moved, successes int }

// believed returns the number of instances that have moved, and the number of these that have moved successfully. It
// counts only as many claims as earlier processes have allowed, and unsuccessful ones first.
func (s *survey) believed(allowed int) (successes, moved int) {
	allowed = max(allowed, 0)
	unsuccessful := s.claimed.moved - s.claimed.successes
	return s.proven.successes + min(s.claimed.successes, max(allowed-unsuccessful, 0)),
		s.proven.moved + min(s.claimed.moved, allowed)
}

// unsuccessful returns the number of instances that have moved, but not successfully.
func (s *survey) unsuccessful() int {
	return s.proven.moved - s.proven.successes + s.claimed.moved - s.claimed.successes
}

func (s *survey) addUnmoved(key string, failing bool) {
	if failing {
		s.failing = append(s.failing, key)
	} else {
		s.healthy = append(s.healthy, key)
	}
}

// add adds an instance to the summary. isProven reports whether the instance has moved because this process allowed it.
// isCurrent reports whether its status describes it after the move. isNew reports whether the instance was created
// after the newest revision was accepted.
func (s *survey) add(i Instance, hasMoved, isProven, isCurrent, isNew bool) {
	if i.Paused {
		s.Paused++
		return
	}
	s.Total++
	s.inUse[i.Revision]++
	if hasMoved {
		s.Updated++
	}
	if !hasMoved || !isCurrent || isNew {
		return
	}
	if i.Changed.After(s.changed) {
		s.changed = i.Changed
	}
	count := &s.claimed
	if isProven {
		count = &s.proven
	}
	count.moved++
	switch {
	case i.Regressed && i.Health == Failing:
		s.Failing = append(s.Failing, i)
	case i.Regressed && i.Health == Waiting:
		s.Waiting = append(s.Waiting, i)
	case i.Health != Failing:
		count.successes++
	}
}

// first returns the first n keys in a pseudorandom order that depends only on the keys and the revision. The order is
// the same in all processes and for each call.
func (g *Gate) first(keys []string, n int) []string {
	ranks := make(map[string]uint64, len(keys))
	for _, key := range keys {
		h := fnv.New64a()
		_, _ = h.Write([]byte(g.revision.Name + "/" + key)) // never fails
		ranks[key] = h.Sum64()
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(ranks[a], ranks[b]), cmp.Compare(a, b)) })
	return keys[:min(max(n, 0), len(keys))]
}
