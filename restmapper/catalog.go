package restmapper

import (
	"cmp"
	"fmt"
	"iter"
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
	// remote is true if the version is served by another server than the API server.
	remote bool
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
	// requests that has been answered. attempted is the number of the newest of these requests that has been answered or
	// has failed.
	asked, answered, attempted int
	refreshed                  int       // the number of the newest of these requests that Refresh has made
	readAt                     time.Time // when Refresh last read the version separately; zero if it has not
	awaited                    bool      // the first sync waits for the resources
}

// isRemote reports whether another server than the API server serves the version.
func (d *discovered) isRemote() bool { return d.service != nil && d.service.remote }

// documentLag is how old the resources of an aggregated API in a discovery document can be. The API server asks the
// servers of such APIs once per minute.
const documentLag = 2 * time.Minute

// isNewerThan reports whether Refresh has read the resources from another server so recently that a document that was
// requested at the given time can contain older ones.
func (d *discovered) isNewerThan(requested time.Time) bool {
	return d.isRemote() && d.unreadError() == nil && requested.Sub(d.readAt) < documentLag
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

// unreadError returns why the newest resources of the version are unknown, or nil if they have been read.
func (d *discovered) unreadError() error {
	switch {
	case d.failure != nil:
		return d.failure.Err
	case d.table == nil:
		return errNotRead
	}
	return nil
}

type rank struct{ group, version int }

// catalog contains everything that the API server serves, as reported by the watches and by discovery. The tables of
// each group depend only on the catalog, not on the order of events. The owner of a version determines which of the
// sources defines its resources; see ownerTable.
type catalog struct {
	crds       map[string]map[string]*crd // by group and name of the CRD
	groupOf    map[string]string          // the group of a CRD, by its name
	tables     map[string][]groupVersion  // of established CRDs, by group, in no particular order
	discovered map[string]map[string]*discovered
	services   int // the number of versions that have a service
	tombstones tombstones
	// crdRefusal is why CRDs cannot be listed, or nil. It is set until the next list is complete.
	crdRefusal error
	// overruled counts the reads by Refresh that have changed a version, so that it can differ from the last document.
	overruled int
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
		c.buryUnowned(schema.GroupVersion{Group: group, Version: v})
	}
	for _, v := range now.claimed() {
		gv := schema.GroupVersion{Group: group, Version: v}
		c.tombstones.remove(gv)
		// The discovery document may have listed the version before the watch delivered the CRD.
		if c.discovered[group][v] != nil && c.ownerOf(gv) == ownedByCRDs {
			c.dropDiscovered(group, v)
			groups.whole(group)
		}
	}
}

// buryUnowned adds a tombstone for a version that has lost an owner, unless it has another one.
func (c *catalog) buryUnowned(gv schema.GroupVersion) {
	if owner := c.ownerOf(gv); owner != ownedByService && owner != ownedByCRDs {
		c.tombstones.add(gv, time.Now())
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
func (c *catalog) isClaimed(gv schema.GroupVersion) bool {
	if c.tableIndex(gv.Group, gv.Version) >= 0 { // usual, and faster than the search
		return true
	}
	for _, crd := range c.crds[gv.Group] {
		if slices.Contains(crd.versions, gv.Version) {
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
		c.buryUnowned(gv)
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
	return !c.rulesOf(gv.Group, gv.Version).documents
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
// have changed and the versions that must be read separately, and reports whether the document contains versions that
// were ignored for a limited time, because of a tombstone or because they may be outdated. Such a document must be
// stored again later, even if it has not changed.
func (c *catalog) setDocument(
	core bool, document []documentVersion, requested time.Time,
) (groups touchedGroups, unread []schema.GroupVersion, isIncomplete bool) {
	groups = touchedGroups{}
	listed := make(map[schema.GroupVersion]bool, len(document))
	for _, v := range document {
		listed[v.gv] = true
		if v.excluded || c.isExcluded(v.gv) {
			isIncomplete = c.tombstones.list(v.gv) || isIncomplete
			continue
		}
		d := c.discover(v.gv)
		if d.found.IsZero() {
			d.found = requested
		}
		wasRead := d.unreadError() == nil
		changed := d.rank != v.rank && c.rulesOf(v.gv.Group, v.gv.Version).position == positionInDocument
		d.rank = v.rank
		switch {
		case v.err != nil:
			d.fail(v.gv, v.err, requested)
			unread = append(unread, v.gv)
		case v.unread:
			d.awaited = d.table == nil && d.failure == nil
			unread = append(unread, v.gv)
		case d.isNewerThan(requested):
			isIncomplete = isIncomplete || !slices.EqualFunc(d.resources, v.resources, (*resource).equal)
		default:
			changed = d.set(v.resources) || changed
		}
		switch {
		case changed:
			groups.whole(v.gv.Group)
		case !wasRead || d.unreadError() != nil:
			groups.in(v.gv.Group)
		}
	}
	unread = append(unread, c.setUnlisted(core, listed, groups)...)
	for _, gv := range unread {
		c.discover(gv).asked++
	}
	return groups, unread, isIncomplete
}

// setUnlisted processes the versions that a document does not list. It removes them or, depending on their owners,
// returns those that must be read separately.
func (c *catalog) setUnlisted(
	core bool, listed map[schema.GroupVersion]bool, groups touchedGroups,
) (unread []schema.GroupVersion) {
	for group, versions := range c.discovered {
		if (group == "") != core {
			continue
		}
		for version := range versions {
			switch gv := (schema.GroupVersion{Group: group, Version: version}); {
			case listed[gv]:
			case c.rulesOf(group, version).keepUnlisted:
				unread = append(unread, gv)
			default:
				c.dropDiscovered(group, version)
				groups.whole(group)
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
		for version, d := range versions {
			if c.rulesOf(group, version).confirm {
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

// owned returns an iterator over the versions of a group whose resources are known. Each version is returned once, with
// the resources that its owner defines. The catalog's entry is nil if the owner is a CRD.
func (c *catalog) owned(group string) iter.Seq2[groupVersion, *discovered] {
	return func(yield func(groupVersion, *discovered) bool) {
		for version, d := range c.discovered[group] {
			if d.table != nil && !yield(groupVersion{version, d.table}, d) {
				return
			}
		}
		for _, v := range c.tables[group] {
			if c.ownerOf(schema.GroupVersion{Group: group, Version: v.version}) == ownedByCRDs && !yield(v, nil) {
				return
			}
		}
	}
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
	for v, d := range c.owned(name) {
		switch c.rulesOf(name, v.version).position {
		case positionOfService:
			add(v, d.service.versionPriority, 0, d.service.groupPriority, 0)
		case positionOfCRD:
			add(v, crdVersionPriority, 0, crdGroupPriority, 0)
		case positionInDocument:
			add(v, documentPriority, d.rank.version, documentPriority, d.rank.group)
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

// epoch returns a number that changes when a document that was read before must be read again, even if it has not
// changed.
func (c *catalog) epoch() int { return c.tombstones.added + c.overruled }

// setCRDRefusal sets crdRefusal. It adds all groups with CRDs to the parameter groups.
func (c *catalog) setCRDRefusal(err error, groups touchedGroups) {
	if (c.crdRefusal == nil) == (err == nil) {
		return
	}
	if c.crdRefusal = nil; err != nil {
		c.crdRefusal = fmt.Errorf("the CRDs of this version cannot be listed: %w", err)
	}
	for group := range c.crds {
		groups.in(group)
	}
}

// unread returns the errors for those versions of a group whose newest resources are unknown, by version. It
// returns nil if the resources of all versions are known.
func (c *catalog) unread(group string) (unread map[string]error) {
	add := func(version string, err error) {
		if unread == nil {
			unread = map[string]error{}
		}
		unread[version] = err
	}
	for version, d := range c.discovered[group] {
		if err := d.unreadError(); err != nil {
			add(version, err)
		}
	}
	for version := range c.refusedIn(group) {
		add(version, c.crdRefusal)
	}
	return unread
}

// refusedIn returns an iterator over the versions of a group whose CRDs cannot be listed, possibly with duplicates.
func (c *catalog) refusedIn(group string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if c.crdRefusal == nil {
			return
		}
		for _, crd := range c.crds[group] {
			for _, v := range crd.versions {
				if c.ownerOf(schema.GroupVersion{Group: group, Version: v}) == ownedByCRDs && !yield(v) {
					return
				}
			}
		}
	}
}

// refusedVersions returns all versions whose CRDs cannot be listed, with the error.
func (c *catalog) refusedVersions() map[schema.GroupVersion]error {
	refused := map[schema.GroupVersion]error{}
	for group := range c.crds {
		for version := range c.refusedIn(group) {
			refused[schema.GroupVersion{Group: group, Version: version}] = c.crdRefusal
		}
	}
	return refused
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
