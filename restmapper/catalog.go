package restmapper

import (
	"cmp"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Priorities that the API server gives to the groups and versions of CRDs.
const (
	crdGroupPriority   = 1000
	crdVersionPriority = 100
)

// aggregatorGroup is the group of APIServices. It is the only group of a kube-apiserver that has no APIService.
const aggregatorGroup = "apiregistration.k8s.io"

// documentPriority is the priority of groups and versions that are ordered by their position in the discovery document.
// Such groups and versions precede all others.
const documentPriority = math.MaxInt

// crd contains the fields of a CRD that the mapper needs. It is immutable.
type crd struct {
	name, group string
	// established reports whether the API server serves the CRD's versions. A CRD that is not established only reserves
	// its versions.
	established bool
	versions    []string // versions with served: true
	resource    *resource
}

func (c *crd) equal(other *crd) bool {
	return c.group == other.group && c.established == other.established &&
		slices.Equal(c.versions, other.versions) && c.resource.equal(other.resource)
}

// claimed returns the versions that belong to the CRD.
func (c *crd) claimed() []string {
	if c == nil {
		return nil
	}
	return c.versions
}

// served returns the versions of the CRD that the API server serves.
func (c *crd) served() []string {
	if c == nil || !c.established {
		return nil
	}
	return c.versions
}

// service contains the fields of an APIService that the mapper needs. It exists only for APIServices that do not belong
// to CRDs.
type service struct {
	groupPriority, versionPriority int
	// condition identifies the backend and its availability. When condition changes, the version is read again.
	condition string
}

// discovered is a version whose resources come from discovery.
type discovered struct {
	service   *service // nil if no APIService is known
	resources []*resource
	table     *table    // of the resources; nil until they have been read
	rank      rank      // position in the discovery document
	found     time.Time // when the request that found the version was sent
	failure   *Error    // the error from the newest request, if it failed
	// asked is the number of requests to read this version separately. answered is the number of the newest of these
	// requests that has been answered.
	asked, answered int
	awaited         bool // the first sync waits for the resources
}

// set stores the resources of the version and reports whether they have changed.
func (d *discovered) set(resources []*resource) (changed bool) {
	d.failure, d.awaited = nil, false
	if d.table != nil && slices.EqualFunc(d.resources, resources, (*resource).equal) {
		return false
	}
	d.resources, d.table = resources, newTable(resources)
	return true
}

// fail stores the error from a request for the version.
func (d *discovered) fail(gv schema.GroupVersion, err error, now time.Time) {
	failure := &Error{Source: SourceDiscovery, GroupVersion: gv, Err: err, Since: now}
	if d.failure != nil {
		failure.Since = d.failure.Since
	}
	d.failure, d.awaited = failure, false
}

type rank struct{ group, version int }

// catalog contains everything that the API server serves, as reported by the watches and by discovery. The tables of
// each group depend only on the catalog, not on the order of events.
//
// A version belongs to discovery if it has an APIService that does not belong to a CRD. Otherwise, it belongs to the
// CRDs that claim it. A version that has neither such an APIService nor a CRD is taken from the discovery documents,
// except while it has a tombstone.
//
// A kube-apiserver has an APIService for each version, except for those of aggregatorGroup. If any APIService is known,
// a version that has neither an APIService nor a CRD therefore belongs to a CRD that one of the watches has not
// delivered yet. Such a version has the priority of a CRD.
type catalog struct {
	crds       map[string]map[string]*crd // by group and name of the CRD
	groupOf    map[string]string          // the group of a CRD, by its name
	tables     map[string][]groupVersion  // of established CRDs, by group, in no particular order
	discovered map[string]map[string]*discovered
	services   int // the number of versions that have a service
	tombstones tombstones
}

func newCatalog() *catalog {
	return &catalog{
		crds: map[string]map[string]*crd{}, groupOf: map[string]string{}, tables: map[string][]groupVersion{},
		discovered: map[string]map[string]*discovered{}, tombstones: newTombstones(),
	}
}

// setCRD stores the new state of a CRD, or removes the CRD if now is nil. The parameter groups collects everything that
// may have changed.
func (c *catalog) setCRD(name string, now *crd, groups touchedGroups) {
	group := c.groupOf[name]
	if now != nil {
		group = now.group // the group of a CRD is immutable
	}
	old := c.crds[group][name]
	if old == nil && now == nil || old != nil && now != nil && old.equal(now) {
		return
	}
	now = c.storeCRD(group, name, old, now)
	c.setTables(group, old, now, groups.in(group))
	for _, v := range old.claimed() {
		if !c.isClaimed(group, v) {
			c.tombstones.add(schema.GroupVersion{Group: group, Version: v}, time.Now())
		}
	}
	for _, v := range now.claimed() {
		c.tombstones.remove(schema.GroupVersion{Group: group, Version: v})
		// The discovery document may have listed the version before the watch delivered the CRD.
		if d := c.discovered[group][v]; d != nil && d.service == nil {
			c.dropDiscovered(group, v)
			groups.whole(group)
		}
	}
}

// storeCRD replaces a CRD, or removes it if now is nil, and returns the CRD that is stored. If both states have equal
// resources, the stored CRD keeps the old resource, so that the tables that contain it can be kept.
func (c *catalog) storeCRD(group, name string, old, now *crd) *crd {
	if now == nil {
		delete(c.groupOf, name)
		if delete(c.crds[group], name); len(c.crds[group]) == 0 {
			delete(c.crds, group)
		}
		return nil
	}
	if old != nil && old.resource.equal(now.resource) {
		same := *now
		same.resource = old.resource
		now = &same
	}
	if c.crds[group] == nil {
		c.crds[group] = map[string]*crd{}
	}
	c.crds[group][name], c.groupOf[name] = now, group
	return now
}

// setTables updates those tables of a group that differ between two states of a CRD.
func (c *catalog) setTables(group string, old, now *crd, touches *touched) {
	type step struct {
		from           *table
		removed, added *resource
	}
	// Versions that had the same resources, and still have the same resources, share a table.
	tables := map[step]*table{}
	for _, v := range compacted(slices.Concat(old.served(), now.served())) {
		s := step{from: emptyTable}
		if i := c.tableIndex(group, v); i >= 0 {
			s.from = c.tables[group][i].table
		}
		if slices.Contains(old.served(), v) {
			s.removed = old.resource
		}
		if slices.Contains(now.served(), v) {
			s.added = now.resource
		}
		if s.removed == s.added {
			continue
		}
		if tables[s] == nil {
			tables[s] = s.from.with(s.removed, s.added, touches)
		}
		c.setTable(group, v, tables[s])
	}
}

func (c *catalog) setTable(group, version string, t *table) {
	i := c.tableIndex(group, version)
	switch tables := c.tables[group]; {
	case t.count > 0 && i < 0:
		c.tables[group] = append(slices.Clip(tables), groupVersion{version, t})
	case t.count > 0:
		tables[i].table = t
	case i < 0:
	case len(tables) > 1:
		c.tables[group] = slices.Delete(tables, i, i+1)
	default:
		delete(c.tables, group)
	}
}

func (c *catalog) tableIndex(group, version string) int {
	return slices.IndexFunc(c.tables[group], func(v groupVersion) bool { return v.version == version })
}

// isClaimed reports whether a CRD claims the version.
func (c *catalog) isClaimed(group, version string) bool {
	for _, crd := range c.crds[group] {
		if slices.Contains(crd.versions, version) {
			return true
		}
	}
	return false
}

// setService stores the new state of an APIService, or removes the APIService if s is nil. It adds the affected groups
// to the parameter groups, and reports whether the version itself has changed.
func (c *catalog) setService(gv schema.GroupVersion, s *service, groups touchedGroups) (changed bool) {
	d := c.discovered[gv.Group][gv.Version]
	switch hadService := d != nil && d.service != nil; {
	case !hadService && s == nil:
		return false
	case hadService && s != nil && *d.service == *s:
		return false
	case s == nil:
		c.dropDiscovered(gv.Group, gv.Version)
		c.countService(-1, groups)
		if !c.isClaimed(gv.Group, gv.Version) {
			c.tombstones.add(gv, time.Now())
		}
	default:
		c.discover(gv).service = s
		c.tombstones.remove(gv)
		if !hadService {
			c.countService(1, groups)
		}
	}
	groups.whole(gv.Group)
	return true
}

// countService adds n to the number of versions that have a service. Adding the first service or removing the last one
// changes the priority of all versions without a service.
func (c *catalog) countService(n int, groups touchedGroups) {
	hadServices := c.services > 0
	c.services += n
	if hadServices == (c.services > 0) {
		return
	}
	for group, versions := range c.discovered {
		for _, d := range versions {
			if d.service == nil {
				groups.whole(group)
			}
		}
	}
}

// discover returns the catalog's entry for a version that comes from discovery. It adds the entry if necessary.
func (c *catalog) discover(gv schema.GroupVersion) *discovered {
	if c.discovered[gv.Group] == nil {
		c.discovered[gv.Group] = map[string]*discovered{}
	}
	d := c.discovered[gv.Group][gv.Version]
	if d == nil {
		d = &discovered{}
		c.discovered[gv.Group][gv.Version] = d
	}
	return d
}

func (c *catalog) dropDiscovered(group, version string) {
	delete(c.discovered[group], version)
	if len(c.discovered[group]) == 0 {
		delete(c.discovered, group)
	}
}

// isExcluded reports whether discovery documents are ignored for the version, because the version belongs to CRDs or
// has a tombstone.
func (c *catalog) isExcluded(gv schema.GroupVersion) bool {
	if d := c.discovered[gv.Group][gv.Version]; d != nil && d.service != nil {
		return false
	}
	return c.tombstones.has(gv) || c.isClaimed(gv.Group, gv.Version)
}

// documentVersion is the entry of a version in a discovery document.
type documentVersion struct {
	gv        schema.GroupVersion
	excluded  bool // the version was excluded when the document was read; it has no resources
	unread    bool // the document does not contain the resources, which must be read separately
	rank      rank
	resources []*resource
	err       error // why the document does not contain the resources
}

// setDocument stores the discovery document of the core group, or that of all other groups. It returns the groups that
// have changed and the versions that must be read separately, and reports whether the document lists versions that have
// a tombstone.
func (c *catalog) setDocument(
	core bool, document []documentVersion, requested time.Time,
) (groups touchedGroups, unread []schema.GroupVersion, hasTombstones bool) {
	groups = touchedGroups{}
	listed := make(map[schema.GroupVersion]bool, len(document))
	for _, v := range document {
		listed[v.gv] = true
		if v.excluded || c.isExcluded(v.gv) {
			hasTombstones = c.tombstones.list(v.gv) || hasTombstones
			continue
		}
		d := c.discover(v.gv)
		if d.found.IsZero() {
			d.found = requested
		}
		changed := d.service == nil && d.rank != v.rank // a service's priorities replace the rank
		d.rank = v.rank
		switch {
		case v.err != nil:
			d.fail(v.gv, v.err, requested)
			unread = append(unread, v.gv)
		case v.unread:
			d.awaited = d.table == nil && d.failure == nil
			unread = append(unread, v.gv)
		default:
			changed = d.set(v.resources) || changed
		}
		if changed {
			groups.whole(v.gv.Group)
		}
	}
	unread = append(unread, c.setUnlisted(core, listed, groups)...)
	for _, gv := range unread {
		c.discover(gv).asked++
	}
	return groups, unread, hasTombstones
}

// setUnlisted processes the versions that a document does not list. It removes those without a service and returns the
// others. A returned version must be read separately, because its service may be newer than the document.
func (c *catalog) setUnlisted(
	core bool, listed map[schema.GroupVersion]bool, groups touchedGroups,
) (unread []schema.GroupVersion) {
	for group, versions := range c.discovered {
		if (group == "") != core {
			continue
		}
		for version, d := range versions {
			switch gv := (schema.GroupVersion{Group: group, Version: version}); {
			case listed[gv]:
			case d.service == nil:
				c.dropDiscovered(group, version)
				groups.whole(group)
			default:
				unread = append(unread, gv)
			}
		}
	}
	return unread
}

// nextCheck returns the time at which the discovery documents must be read again to resolve a contradiction between the
// watches and the documents that were requested at the given time. The result is zero if there is no contradiction.
//
// If a document lists a version with a tombstone, either the document is outdated, or another API now serves the
// version. If a document lists a version without a service for the first time, the document may be outdated and the
// version may belong to a deleted CRD.
func (c *catalog) nextCheck(requested time.Time) (next time.Time) {
	check := func(at time.Time) {
		if at.After(requested) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for group, versions := range c.discovered {
		for _, d := range versions {
			if c.isUnconfirmed(group, d) || c.services == 0 {
				check(d.found.Add(c.tombstones.lifetime))
			}
		}
	}
	for _, t := range c.tombstones.entries {
		if t.listed {
			check(t.expires)
		}
	}
	return next
}

// isUnconfirmed reports whether the version probably belongs to a CRD that one of the watches has not delivered yet.
func (c *catalog) isUnconfirmed(group string, d *discovered) bool {
	return d.service == nil && c.services > 0 && group != aggregatorGroup
}

// group returns a group, or nil if it does not exist.
func (c *catalog) group(name string) *group {
	type candidate struct {
		groupVersion
		priority, rank int
	}
	var candidates []candidate
	o := &order{name: name, priority: math.MinInt}
	add := func(v groupVersion, versionPriority, versionRank, groupPriority, groupRank int) {
		candidates = append(candidates, candidate{groupVersion: v, priority: versionPriority, rank: versionRank})
		if groupPriority > o.priority {
			o.priority, o.rank = groupPriority, groupRank
		}
	}
	for version, d := range c.discovered[name] {
		switch v := (groupVersion{version, d.table}); {
		case d.table == nil:
		case d.service != nil:
			add(v, d.service.versionPriority, 0, d.service.groupPriority, 0)
		case c.isUnconfirmed(name, d):
			add(v, crdVersionPriority, 0, crdGroupPriority, 0)
		default:
			add(v, documentPriority, d.rank.version, documentPriority, d.rank.group)
		}
	}
	for _, v := range c.tables[name] {
		if c.discovered[name][v.version] == nil { // otherwise, the version belongs to discovery
			add(v, crdVersionPriority, 0, crdGroupPriority, 0)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	if name == "" {
		o.priority, o.rank = documentPriority, -1
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.priority, b.priority), cmp.Compare(a.rank, b.rank),
			-version.CompareKubeAwareVersionStrings(a.version, b.version))
	})
	g := &group{order: o, versions: make([]groupVersion, len(candidates))}
	for i, v := range candidates {
		g.versions[i] = v.groupVersion
	}
	return g
}

// names returns the names of all groups that may exist.
func (c *catalog) names() map[string]bool {
	names := map[string]bool{}
	for name := range c.crds {
		names[name] = true
	}
	for name := range c.discovered {
		names[name] = true
	}
	return names
}
