package restmapper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Option is an option for [New].
type Option func(*Mapper) error

// WithPollPeriod sets the time between polls of the discovery documents. Polling is the only way to detect changes to
// the resources of an aggregated API, because they cause no events. Each period is extended or shortened by up to a
// fifth, so that replicas do not poll at the same time. The default is 5 minutes, and the minimum is 1 second. While
// CRDs cannot be listed because of a missing permission, the period is at most 30 seconds.
func WithPollPeriod(d time.Duration) Option {
	return func(m *Mapper) error {
		if d < minPollPeriod {
			return fmt.Errorf("invalid poll period %s: must be at least %s", d, minPollPeriod)
		}
		m.pollPeriod = d
		return nil
	}
}

const (
	defaultPollPeriod = 5 * time.Minute
	minPollPeriod     = time.Second
)

// Mapper is a [meta.RESTMapper] that watches CRDs and APIServices. Its methods can be called concurrently.
type Mapper struct {
	log        logr.Logger
	pollPeriod time.Duration
	crds       *watcher
	services   *watcher
	discoverer *discoverer
	running    atomic.Bool
	now        atomic.Pointer[snapshot] // nil until the mapper has synced
	reset      chan struct{}            // receives requests to read the discovery documents; has a buffer of one
	// refreshAsked receives a value when refresh has been set; has a buffer of one.
	refreshAsked chan struct{}
	documents    chan *refresh // receives requests to read the discovery documents
	listChanged  chan struct{} // receives a value when the state of a list has changed; has a buffer of one
	wake         chan struct{} // receives a value when unread has changed; has a buffer of one
	read         chan struct{} // receives a value when a version has been read or removed; has a buffer of one
	listed       chan struct{} // closed when the discovery documents can be read; see waitForLists
	notifier     notifier

	// mu guards the fields below, the order of snapshots, and the order of notifications. It is never held during a
	// request or while a subscriber is called.
	mu          sync.Mutex
	catalog     *catalog
	crdList     list
	serviceList list
	refresh     *refresh  // the next one; can be nil
	next        *snapshot // the current snapshot, which also exists before the first sync
	unread      map[schema.GroupVersion]bool
	reading     map[schema.GroupVersion]chan struct{} // see readVersions
	waiters     map[string]*waiters                   // by group
	failures    map[Source]failure                    // except those of single versions
}

// New returns a mapper for the API server of cfg. It does not start goroutines or open connections. If cfg has no
// UserAgent, requests have client-go's default one, followed by "/restmapper".
func New(log logr.Logger, cfg *rest.Config, opts ...Option) (*Mapper, error) {
	m := &Mapper{
		log: log, pollPeriod: defaultPollPeriod, notifier: notifier{log: log},
		reset: make(chan struct{}, 1), refreshAsked: make(chan struct{}, 1), documents: make(chan *refresh),
		listChanged: make(chan struct{}, 1), wake: make(chan struct{}, 1), read: make(chan struct{}, 1),
		catalog: newCatalog(), listed: make(chan struct{}), next: emptySnapshot(),
		unread: map[schema.GroupVersion]bool{}, reading: map[schema.GroupVersion]chan struct{}{},
		waiters: map[string]*waiters{}, failures: map[Source]failure{},
	}
	for _, opt := range opts {
		if err := opt(m); err != nil {
			return nil, fmt.Errorf("create REST mapper: %w", err)
		}
	}
	if cfg == nil {
		return nil, errors.New("create REST mapper: cfg must not be nil")
	}
	m.crds, m.services = m.newCRDWatcher(), m.newServiceWatcher()
	var err error
	if cfg.UserAgent == "" {
		cfg = rest.AddUserAgent(rest.CopyConfig(cfg), "restmapper")
	}
	if m.discoverer, err = newDiscoverer(cfg); err == nil {
		err = errors.Join(m.crds.init(log.V(1), cfg), m.services.init(log.V(1), cfg))
	}
	if err != nil {
		return nil, fmt.Errorf("create REST mapper: %w", err)
	}
	return m, nil
}

// Run keeps the mapper up to date until ctx is cancelled. It returns when its goroutines have ended and no subscriber
// is being called. Run must not be called while it is running, but can be called again after it has returned. Between
// runs, lookups return the last known results.
func (m *Mapper) Run(ctx context.Context) error {
	if !m.running.CompareAndSwap(false, true) {
		return errors.New("the REST mapper is already running")
	}
	defer m.running.Store(false)
	m.notifier.start()
	defer m.notifier.stop()
	var parts sync.WaitGroup
	parts.Go(func() { m.crds.loop.Run(ctx) })
	parts.Go(func() { m.services.loop.Run(ctx) })
	parts.Go(func() { m.poll(ctx) })
	parts.Go(func() { m.processRefreshes(ctx) })
	parts.Go(func() { m.readVersions(ctx) })
	parts.Wait()
	return nil
}

// HasSynced reports whether the mapper has synced at least once.
func (m *Mapper) HasSynced() bool { return m.now.Load() != nil }

func (m *Mapper) newCRDWatcher() *watcher {
	gv := schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
	return &watcher{
		gvk: gv.WithKind("CustomResourceDefinition"), gvr: gv.WithResource("customresourcedefinitions"),
		newObject: func() runtime.Object { return &customResourceDefinition{} },
		reduce:    reduceCRD,
		replace:   m.replaceCRDs,
		set:       m.setCRD,
		report:    func(err error) { m.setFailure(SourceCRDs, gv, err) },
		answered:  m.setCRDResult,
	}
}

func (m *Mapper) newServiceWatcher() *watcher {
	gv := schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}
	return &watcher{
		gvk: gv.WithKind("APIService"), gvr: gv.WithResource("apiservices"), selector: selectNotAutomanaged,
		newObject: func() runtime.Object { return &apiService{} },
		reduce:    reduceService,
		replace:   m.replaceServices,
		set:       m.setService,
		report:    func(err error) { m.setFailure(SourceAPIServices, gv, err) },
		answered:  m.setServiceResult,
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
		m.catalog.setCRD(c.Name, c.crd(), groups)
	}
	var deleted []string
	for name := range m.catalog.groupOf {
		if !listed[name] {
			deleted = append(deleted, name)
		}
	}
	for _, name := range deleted {
		m.catalog.setCRD(name, nil, groups)
	}
	m.catalog.setCRDRefusal(nil, groups)
	m.setListedLocked(&m.crdList)
	m.publishLocked(groups)
}

func (m *Mapper) setCRD(name string, object any) {
	var c *crd
	if object != nil {
		c = object.(*customResourceDefinition).crd()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := touchedGroups{}
	m.catalog.setCRD(name, c, groups)
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
		m.setServiceLocked(s.groupVersion(), s.service(), groups)
	}
	var deleted []schema.GroupVersion
	for group, versions := range m.catalog.discovered {
		for version := range versions {
			if gv := (schema.GroupVersion{Group: group, Version: version}); !listed[gv] {
				deleted = append(deleted, gv)
			}
		}
	}
	for _, gv := range deleted {
		m.setServiceLocked(gv, nil, groups)
	}
	m.setListedLocked(&m.serviceList)
	m.publishLocked(groups)
}

// setService stores the new state of an APIService. If the APIService was deleted, the group and version are derived
// from its name.
func (m *Mapper) setService(name string, object any) {
	var s *service
	gv := serviceVersion(name)
	if object != nil {
		gv, s = object.(*apiService).groupVersion(), object.(*apiService).service()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := touchedGroups{}
	m.setServiceLocked(gv, s, groups)
	m.publishLocked(groups)
}

// setServiceLocked requests a read of the version if its APIService is new or has changed. Before the first list is
// complete, no read is needed, because the discovery documents are read afterwards.
func (m *Mapper) setServiceLocked(gv schema.GroupVersion, s *service, groups touchedGroups) {
	if m.catalog.setService(gv, s, groups) && s != nil && m.serviceList.isUsable {
		m.catalog.discover(gv).asked++
		m.requestReadLocked(gv)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// publishLocked rebuilds the given groups and makes them visible to lookups, waiters and subscribers.
func (m *Mapper) publishLocked(groups touchedGroups) {
	if len(groups) == 0 {
		return
	}
	changed := make(map[string]groupChange, len(groups))
	for name, touches := range groups {
		changed[name] = groupChange{now: m.catalog.group(name), unread: m.catalog.unread(name), touches: touches}
	}
	old := m.next
	m.next = old.with(changed)
	signal(m.read) // a version may have been removed
	if !m.HasSynced() {
		return
	}
	m.now.Store(m.next)
	for name := range groups {
		m.wakeLocked(name)
	}
	if m.notifier.isEmpty() {
		return
	}
	var changes []pending
	for name, c := range changed {
		changes = append(changes, difference(old.groups.Get(name), c.now, c.touches)...)
	}
	m.notifier.notify(changes)
}

// setSynced publishes the first snapshot.
func (m *Mapper) setSynced() {
	groups, isFirst := m.publishFirst()
	if isFirst {
		m.log.Info("REST mapper synced", keyGroups, groups)
	}
}

func (m *Mapper) publishFirst() (groups int, isFirst bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.HasSynced() {
		return 0, false
	}
	m.now.Store(m.next)
	for group := range m.waiters {
		m.wakeLocked(group)
	}
	m.notifier.notify(m.knownLocked())
	return len(m.next.ordered), true
}

// Subscribe calls f with each kind that is currently served, as [Added], and then with each change. Calls do not
// overlap, and are made in the order of the changes. They are made only while the mapper is running. The next Run
// delivers the changes that were pending when the previous Run returned, and those that have happened since.
//
// The mapper never waits for f. While a call is in progress, changes to each kind are merged into one: Old is the
// state that the last call delivered, and New is the newest state. Kinds whose state has not changed are skipped. When
// f is called, lookups return New or a newer state. A change that affects only short names, singulars or categories is
// not reported. A panic in f, or a call to runtime.Goexit, is logged, and the subscription continues with the next
// change.
//
// After cancel has been called, no further call to f begins. The channel that cancel returns is closed when no call is
// in progress. Callers other than subscribers can wait for it with <-cancel().
func (m *Mapper) Subscribe(f func(Change)) (cancel func() (done <-chan struct{})) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var known []pending
	if m.HasSynced() {
		known = m.knownLocked()
	}
	s := m.notifier.subscribe(f, known)
	return func() <-chan struct{} { return m.notifier.cancel(s) }
}

// knownLocked returns a change of type Added for every kind.
func (m *Mapper) knownLocked() []pending {
	var known []pending
	for _, o := range m.next.ordered {
		known = append(known, difference(nil, m.next.groups.Get(o.name), &touched{whole: true})...)
	}
	return known
}
