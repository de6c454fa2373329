package restmapper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// ErrNotSynced is what lookups return before the mapper has synced for the first time: it does not know yet. It is no
// NoMatch error, since nothing is known of the kind.
var ErrNotSynced = errors.New("the REST mapper has not synced yet")

// An Option changes what New returns.
type Option func(*Mapper) error

// WithPollPeriod sets how often the API server is asked whether its discovery document has changed, to see what an
// aggregated API serves, of which there is no event. The times are spread by a fifth. It defaults to 5 minutes.
func WithPollPeriod(d time.Duration) Option {
	return func(m *Mapper) error {
		if d <= 0 {
			return fmt.Errorf("poll period %s is not positive", d)
		}
		m.pollPeriod = d
		return nil
	}
}

const (
	defaultPollPeriod = 5 * time.Minute
	// settleTime is after how long the document is read again if it had something that no watch explains: the trace of a
	// CRD that went as the mapper started, or an API server's group without an APIService.
	settleTime = time.Second
	// resetPeriod is how often Reset may cost a request.
	resetPeriod = 10 * time.Second
)

// Mapper maps kinds to resources and back. Lookups may be made by any number of goroutines at any time.
type Mapper struct {
	log        logr.Logger
	pollPeriod time.Duration
	crds       *feed
	services   *feed
	discoverer *discoverer
	running    atomic.Bool
	now        atomic.Pointer[snapshot] // nil until synced
	reset      chan struct{}            // holds one request to read the documents now
	wake       chan struct{}            // holds one request to look for versions to read alone
	hub        hub

	mu    sync.Mutex // guards what follows, the order of the snapshots, and that of what is told
	world *world
	// listed is closed when both watches have listed, or the APIServices cannot be.
	listed         chan struct{}
	crdsListed     bool
	servicesListed bool
	next           *snapshot                    // what now is, or will be once synced
	toRead         map[schema.GroupVersion]bool // alone
	waiters        map[string]*waiters          // by group
	failures       map[string]error             // by what failed: a watch's group, or a document's path
}

// New returns a mapper for the API server of cfg. It starts nothing and opens no connection: Run does.
func New(log logr.Logger, cfg *rest.Config, opts ...Option) (*Mapper, error) {
	m := &Mapper{
		log: log, pollPeriod: defaultPollPeriod,
		reset: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		world: newWorld(), listed: make(chan struct{}), next: emptySnapshot(),
		toRead: map[schema.GroupVersion]bool{}, waiters: map[string]*waiters{}, failures: map[string]error{},
	}
	for _, opt := range opts {
		if err := opt(m); err != nil {
			return nil, fmt.Errorf("REST mapper: %w", err)
		}
	}
	var err error
	if m.crds, err = m.crdFeed(cfg); err == nil {
		if m.services, err = m.serviceFeed(cfg); err == nil {
			m.discoverer, err = newDiscoverer(cfg)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("REST mapper: %w", err)
	}
	return m, nil
}

// Run keeps the mapper up to date until ctx ends, and returns when its goroutines have ended and no subscriber is being
// called. It is an error to run it twice at once. It may run again: until it has caught up the answers are the last ones.
func (m *Mapper) Run(ctx context.Context) error {
	if !m.running.CompareAndSwap(false, true) {
		return errors.New("the REST mapper is running already")
	}
	defer m.running.Store(false)
	m.hub.start()
	defer m.hub.stop()
	var parts sync.WaitGroup
	parts.Go(func() { m.crds.run(ctx, m.log) })
	parts.Go(func() { m.services.run(ctx, m.log) })
	parts.Go(func() { m.poll(ctx) })
	parts.Go(func() { m.readAlone(ctx) })
	parts.Wait()
	return nil
}

// HasSynced tells whether lookups are answered. It stays so once it is.
func (m *Mapper) HasSynced() bool { return m.now.Load() != nil }

// Errors tells what fails at the moment, by group: what was known of the group before is still answered. The watches of
// CRDs and of APIServices count for their own groups, apiextensions.k8s.io and apiregistration.k8s.io, and for "*" the
// discovery documents as a whole.
func (m *Mapper) Errors() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]error{}
	for group, versions := range m.world.discovered {
		for version, d := range versions {
			if d.err != nil {
				gv := schema.GroupVersion{Group: group, Version: version}
				all[group] = errors.Join(all[group], fmt.Errorf("discovery of %s: %w", gv, d.err))
			}
		}
	}
	for what, err := range m.failures {
		all[what] = errors.Join(all[what], err)
	}
	return all
}

// setFailure notes how a request ended.
func (m *Mapper) setFailure(what string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.failures, what)
		return
	}
	m.failures[what] = err
}

const (
	crdGroup     = "apiextensions.k8s.io"
	serviceGroup = "apiregistration.k8s.io"
	documents    = "*"
)

func (m *Mapper) crdFeed(cfg *rest.Config) (*feed, error) {
	gvk := schema.GroupVersionKind{Group: crdGroup, Version: "v1", Kind: "CustomResourceDefinition"}
	client, err := newFeedClient(cfg, gvk, &customResourceDefinition{})
	if err != nil {
		return nil, err
	}
	return &feed{
		gvr: gvk.GroupVersion().WithResource("customresourcedefinitions"), client: client,
		newObject: func() runtime.Object { return &customResourceDefinition{} },
		reduce: func(object any) (any, error) {
			c, ok := object.(*customResourceDefinition)
			if !ok {
				return nil, unexpected(object)
			}
			c.ObjectMeta = reduceMeta(c.ObjectMeta, "")
			return c, nil
		},
		replace: m.replaceCRDs, set: m.setCRD,
		ended: func(err error) { m.setFailure(crdGroup, err) },
	}, nil
}

func (m *Mapper) serviceFeed(cfg *rest.Config) (*feed, error) {
	gvk := schema.GroupVersionKind{Group: serviceGroup, Version: "v1", Kind: "APIService"}
	client, err := newFeedClient(cfg, gvk, &apiService{})
	if err != nil {
		return nil, err
	}
	return &feed{
		gvr: gvk.GroupVersion().WithResource("apiservices"), client: client, selector: selectNotAutomanaged,
		newObject: func() runtime.Object { return &apiService{} },
		reduce: func(object any) (any, error) {
			s, ok := object.(*apiService)
			if !ok {
				return nil, unexpected(object)
			}
			s.ObjectMeta = reduceMeta(s.ObjectMeta, labelAutomanaged)
			return s, nil
		},
		replace: m.replaceServices, set: m.setService,
		ended: m.servicesEnded,
	}, nil
}

// servicesEnded notes how a request for APIServices ended. Where there are none, or none to be seen, the mapper goes
// without: all that is not a CRD's is the document's then.
func (m *Mapper) servicesEnded(err error) {
	m.setFailure(serviceGroup, err)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.servicesListed = true
		m.listedLocked()
	}
}

// listedLocked lets the documents be read once it is known whose a version is.
func (m *Mapper) listedLocked() {
	if m.crdsListed && m.servicesListed {
		select {
		case <-m.listed:
		default:
			close(m.listed)
		}
	}
}

func (m *Mapper) replaceCRDs(objects []any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	listed := make(map[string]bool, len(objects))
	groups := touchedGroups{}
	for _, object := range objects {
		c := object.(*customResourceDefinition)
		listed[c.Name] = true
		m.world.setCRD(c.Name, c.essence(), groups)
	}
	var gone []string
	for name := range m.world.groupOf {
		if !listed[name] {
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		m.world.setCRD(name, nil, groups)
	}
	m.crdsListed = true
	m.listedLocked()
	m.publishLocked(groups)
}

func (m *Mapper) setCRD(name string, object any) {
	var c *crd
	if object != nil {
		c = object.(*customResourceDefinition).essence()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := touchedGroups{}
	m.world.setCRD(name, c, groups)
	m.publishLocked(groups)
}

func (m *Mapper) replaceServices(objects []any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	listed := map[schema.GroupVersion]bool{}
	groups := touchedGroups{}
	for _, object := range objects {
		s := object.(*apiService)
		listed[s.groupVersion()] = true
		m.setServiceLocked(s.groupVersion(), s.essence(), groups)
	}
	var gone []schema.GroupVersion
	for group, versions := range m.world.discovered {
		for version := range versions {
			if gv := (schema.GroupVersion{Group: group, Version: version}); !listed[gv] {
				gone = append(gone, gv)
			}
		}
	}
	for _, gv := range gone {
		m.setServiceLocked(gv, nil, groups)
	}
	m.servicesListed = true
	m.listedLocked()
	m.publishLocked(groups)
}

// setService takes an APIService. A deleted one comes by its name alone, which is version.group.
func (m *Mapper) setService(name string, object any) {
	var s *service
	gv := serviceName(name)
	if object != nil {
		gv, s = object.(*apiService).groupVersion(), object.(*apiService).essence()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := touchedGroups{}
	m.setServiceLocked(gv, s, groups)
	m.publishLocked(groups)
}

// setServiceLocked has a version read again whose APIService is new or has changed. The first ones are in the document.
func (m *Mapper) setServiceLocked(gv schema.GroupVersion, s *service, groups touchedGroups) {
	if !m.world.setService(gv, s) {
		return
	}
	groups.whole(gv.Group)
	if s != nil && m.servicesListed {
		m.world.discover(gv).asked++
		m.readLocked(gv)
	}
}

// readLocked has a version read alone.
func (m *Mapper) readLocked(gv schema.GroupVersion) {
	m.toRead[gv] = true
	signal(m.wake)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// publishLocked makes these groups anew and lets lookups, waiters and subscribers see them.
func (m *Mapper) publishLocked(groups touchedGroups) {
	if len(groups) == 0 {
		return
	}
	changed := make(map[string]groupChange, len(groups))
	for name, touches := range groups {
		changed[name] = groupChange{now: m.world.group(name), touches: touches}
	}
	old := m.next
	m.next = old.with(changed)
	if m.now.Load() == nil {
		return // nobody has been told anything yet
	}
	m.now.Store(m.next)
	for name := range groups {
		m.wakeLocked(name)
	}
	if m.hub.isEmpty() {
		return
	}
	var changes []pending
	for name, c := range changed {
		changes = append(changes, difference(old.groups.get(name), c.now, c.touches)...)
	}
	m.hub.tell(changes)
}

// syncLocked answers from now on.
func (m *Mapper) syncLocked() {
	if m.now.Load() != nil {
		return
	}
	m.now.Store(m.next)
	m.log.Info("REST mapper synced", keyGroups, len(m.next.ordered))
	for group := range m.waiters {
		m.wakeLocked(group)
	}
	m.hub.tell(m.knownLocked())
}

// Subscribe has f called, one call at a time, with each kind that is served now and then with each change, in order: at
// first as [Added]. Calls are made while Run runs; what happens meanwhile is told by the next Run.
//
// The mapper never waits for f. While a call runs, what happens to a kind is merged into one change: Old is what f was
// told last, New what holds when it is told, and a kind that is as it was is not told at all. By the time of a call
// lookups answer New or something newer. A change of short names, singulars or categories alone is no change.
//
// Cancel ends the calls, and returns when none is running any more. Called by f itself, at whatever depth of its own
// goroutine, or by another subscriber's f, it does not wait: the running call is the last.
func (m *Mapper) Subscribe(f func(Change)) (cancel func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var known []pending
	if m.now.Load() != nil {
		known = m.knownLocked()
	}
	s := m.hub.subscribe(f, known)
	return func() { m.hub.cancel(s) }
}

// knownLocked is everything, as new.
func (m *Mapper) knownLocked() []pending {
	var known []pending
	for _, o := range m.next.ordered {
		known = append(known, difference(nil, m.next.groups.get(o.name), &touched{whole: true})...)
	}
	return known
}
