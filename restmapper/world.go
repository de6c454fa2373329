package restmapper

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// What the API server gives the groups and versions of CRDs in its own discovery.
const (
	crdGroupPriority   = 1000
	crdVersionPriority = 100
)

// first is the priority of what the API server ranks without telling: its document has it before all others.
const first = math.MaxInt

// crd is what a CRD says, as far as mapping needs it. It is never changed.
type crd struct {
	name, group string
	// established: its versions answer. Others only tell whose a version will be.
	established bool
	versions    []string // served ones
	resource    *resource
}

func (c *crd) equal(other *crd) bool {
	return c.group == other.group && c.established == other.established && slices.Equal(c.versions, other.versions) && c.resource.equal(other.resource)
}

// named are the versions that the CRD says are served.
func (c *crd) named() []string {
	if c == nil {
		return nil
	}
	return c.versions
}

// served are the versions that answer.
func (c *crd) served() []string {
	if c == nil || !c.established {
		return nil
	}
	return c.versions
}

// service is what an APIService says of a version that comes from no CRD.
type service struct {
	groupPriority, versionPriority int
	// condition tells one state of its backend from another.
	condition string
}

// discovered is what is known of a version that comes from no CRD.
type discovered struct {
	service   *service // nil if there is none, or none could be read
	resources []*resource
	table     *table // of the resources, nil until they were read once
	rank      rank   // in the document
	err       error
	// asked and answered count the requests to read the version alone.
	asked, answered int
}

type rank struct{ group, version int }

// world is what the API server serves, as far as its watches and discovery have told: from which each group's table
// follows, whatever came first.
//
// A version belongs to discovery if it has an APIService that comes from no CRD, and else to the CRDs that name it. One
// with neither is discovery's too, but not if it ever was somebody's: the document trails behind what the watches tell,
// and must not bring back what they have taken away.
type world struct {
	crds       map[string]map[string]*crd // by group and the CRD's name
	groupOf    map[string]string          // a CRD's group, by its name
	tables     map[string][]groupVersion  // of the established CRDs, by group; their order means nothing
	discovered map[string]map[string]*discovered
	former     map[schema.GroupVersion]bool // was a CRD's or an APIService's, and the document may still have it
}

func newWorld() *world {
	return &world{
		crds: map[string]map[string]*crd{}, groupOf: map[string]string{}, tables: map[string][]groupVersion{},
		discovered: map[string]map[string]*discovered{}, former: map[schema.GroupVersion]bool{},
	}
}

// setCRD takes a CRD's new state, nil if it is gone, and notes what that touches.
func (w *world) setCRD(name string, c *crd, groups touchedGroups) {
	group := w.groupOf[name]
	if c != nil {
		group = c.group // immutable, so that it is the old one's too
	}
	old := w.crds[group][name]
	switch {
	case old == nil && c == nil:
		return
	case old != nil && c != nil && old.equal(c):
		return
	case c == nil:
		delete(w.crds[group], name)
		delete(w.groupOf, name)
		if len(w.crds[group]) == 0 {
			delete(w.crds, group)
		}
	default:
		if old != nil && old.resource.equal(c.resource) {
			same := *c
			same.resource = old.resource // so that the tables stay that have it
			c = &same
		}
		if w.crds[group] == nil {
			w.crds[group] = map[string]*crd{}
		}
		w.crds[group][name], w.groupOf[name] = c, group
	}
	w.setTables(group, old, c, groups.in(group))
	for _, v := range old.named() {
		if !w.isClaimed(group, v) {
			w.former[schema.GroupVersion{Group: group, Version: v}] = true
		}
	}
	for _, v := range c.named() {
		delete(w.former, schema.GroupVersion{Group: group, Version: v})
		// The document had it before this watch.
		if d := w.discovered[group][v]; d != nil && d.service == nil {
			w.dropDiscovered(group, v)
			groups.whole(group)
		}
	}
}

// setTables makes those tables of a group anew in which a CRD is otherwise than before.
func (w *world) setTables(group string, old, now *crd, touches *touched) {
	type step struct {
		from           *table
		removed, added *resource
	}
	// Versions that had the same resources, and have them again, share their table.
	made := map[step]*table{}
	for _, v := range compacted(slices.Concat(old.served(), now.served())) {
		s := step{from: emptyTable}
		if i := w.tableOf(group, v); i >= 0 {
			s.from = w.tables[group][i].table
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
		if made[s] == nil {
			made[s] = s.from.with(s.removed, s.added, touches)
		}
		w.setTable(group, v, made[s])
	}
}

func (w *world) setTable(group, version string, t *table) {
	i := w.tableOf(group, version)
	switch tables := w.tables[group]; {
	case t.count > 0 && i < 0:
		w.tables[group] = append(slices.Clip(tables), groupVersion{version, t})
	case t.count > 0:
		tables[i].table = t
	case i < 0:
	case len(tables) > 1:
		w.tables[group] = slices.Delete(tables, i, i+1)
	default:
		delete(w.tables, group)
	}
}

func (w *world) tableOf(group, version string) int {
	return slices.IndexFunc(w.tables[group], func(v groupVersion) bool { return v.version == version })
}

// isClaimed tells whether a CRD names the version.
func (w *world) isClaimed(group, version string) bool {
	for _, c := range w.crds[group] {
		if slices.Contains(c.versions, version) {
			return true
		}
	}
	return false
}

// setService takes an APIService's new state, nil if it is gone, and tells whether the version must be read again.
func (w *world) setService(gv schema.GroupVersion, s *service) (changed bool) {
	d := w.discovered[gv.Group][gv.Version]
	switch {
	case s == nil && (d == nil || d.service == nil):
		return false
	case s == nil:
		w.dropDiscovered(gv.Group, gv.Version)
		w.former[gv] = true
		return true
	case d != nil && d.service != nil && *d.service == *s:
		return false
	}
	d = w.discover(gv)
	d.service = s
	delete(w.former, gv)
	return true
}

func (w *world) discover(gv schema.GroupVersion) *discovered {
	if w.discovered[gv.Group] == nil {
		w.discovered[gv.Group] = map[string]*discovered{}
	}
	d := w.discovered[gv.Group][gv.Version]
	if d == nil {
		d = &discovered{}
		w.discovered[gv.Group][gv.Version] = d
	}
	return d
}

func (w *world) dropDiscovered(group, version string) {
	delete(w.discovered[group], version)
	if len(w.discovered[group]) == 0 {
		delete(w.discovered, group)
	}
}

// belongsToCRDs tells a version of which discovery has nothing to say.
func (w *world) belongsToCRDs(gv schema.GroupVersion) bool {
	if d := w.discovered[gv.Group][gv.Version]; d != nil && d.service != nil {
		return false
	}
	return w.former[gv] || w.isClaimed(gv.Group, gv.Version)
}

// documentVersion is what a discovery document says of a version: its resources, or why it has none.
type documentVersion struct {
	gv        schema.GroupVersion
	skipped   bool // it is there, and was not looked at
	rank      rank
	resources []*resource
	err       error
}

// setDocument takes one of the two discovery documents: that of the core group, or that of all others. It returns the
// groups concerned, the versions that must be read alone, and whether there is something that no watch explains.
func (w *world) setDocument(core bool, document []documentVersion) (groups touchedGroups, alone []schema.GroupVersion, unexplained bool) {
	groups = touchedGroups{}
	listed := make(map[schema.GroupVersion]bool, len(document))
	for _, v := range document {
		listed[v.gv] = true
		if v.skipped || w.belongsToCRDs(v.gv) {
			continue
		}
		if d := w.discovered[v.gv.Group][v.gv.Version]; d == nil || d.service == nil && d.table == nil {
			unexplained = true
		}
		d := w.discover(v.gv)
		changed := d.service == nil && d.rank != v.rank // an APIService's priorities count instead
		d.rank = v.rank
		if v.err != nil {
			d.err = v.err
			d.asked++
			alone = append(alone, v.gv)
		} else {
			changed = d.set(v.resources) || changed
		}
		if changed {
			groups.whole(v.gv.Group)
		}
	}
	for group, versions := range w.discovered {
		if (group == "") != core {
			continue
		}
		for version, d := range versions {
			gv := schema.GroupVersion{Group: group, Version: version}
			switch {
			case listed[gv]:
			case d.service == nil:
				w.dropDiscovered(group, version)
				groups.whole(group)
			default: // what the APIService stands for may be newer than the document
				d.asked++
				alone = append(alone, gv)
			}
		}
	}
	maps.DeleteFunc(w.former, func(gv schema.GroupVersion, _ bool) bool { return (gv.Group == "") == core && !listed[gv] })
	return groups, alone, unexplained
}

// set takes a good answer and tells whether it is a new one.
func (d *discovered) set(resources []*resource) (changed bool) {
	d.err = nil
	if d.table != nil && slices.EqualFunc(d.resources, resources, (*resource).equal) {
		return false
	}
	d.resources, d.table = resources, newTable(resources)
	return true
}

// group makes a group, nil if there is no such group now.
func (w *world) group(name string) *group {
	type candidate struct {
		groupVersion
		priority, rank int
	}
	var candidates []candidate
	o := order{name: name, priority: math.MinInt}
	outrank := func(priority, rank int) {
		if priority > o.priority {
			o.priority, o.rank = priority, rank
		}
	}
	for v, d := range w.discovered[name] {
		if d.table == nil {
			continue
		}
		c := candidate{groupVersion: groupVersion{v, d.table}, priority: first, rank: d.rank.version}
		if d.service != nil {
			c.priority, c.rank = d.service.versionPriority, 0
			outrank(d.service.groupPriority, 0)
		} else {
			outrank(first, d.rank.group)
		}
		candidates = append(candidates, c)
	}
	for _, v := range w.tables[name] {
		if w.discovered[name][v.version] != nil {
			continue // the version is discovery's
		}
		outrank(crdGroupPriority, 0)
		candidates = append(candidates, candidate{groupVersion: v, priority: crdVersionPriority})
	}
	if len(candidates) == 0 {
		return nil
	}
	if name == "" {
		o.priority, o.rank = first, -1
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.priority, b.priority), cmp.Compare(a.rank, b.rank), -version.CompareKubeAwareVersionStrings(a.version, b.version))
	})
	g := &group{order: o, versions: make([]groupVersion, len(candidates))}
	for i, c := range candidates {
		g.versions[i] = c.groupVersion
	}
	return g
}

// names lists all groups that there may be.
func (w *world) names() map[string]bool {
	names := map[string]bool{}
	for name := range w.crds {
		names[name] = true
	}
	for name := range w.discovered {
		names[name] = true
	}
	return names
}
