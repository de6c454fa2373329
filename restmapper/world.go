package restmapper

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

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
	known     bool // resources were read at least once
	rank      rank // in the document
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
	discovered map[string]map[string]*discovered
	former     map[schema.GroupVersion]bool // was a CRD's or an APIService's, and the document may still have it
}

func newWorld() *world {
	return &world{
		crds: map[string]map[string]*crd{}, groupOf: map[string]string{},
		discovered: map[string]map[string]*discovered{}, former: map[schema.GroupVersion]bool{},
	}
}

// setCRD takes a CRD's new state, nil if it is gone, and tells whether that matters to its group.
func (w *world) setCRD(name string, c *crd) (group string, changed bool) {
	group = w.groupOf[name]
	if c != nil {
		group = c.group // immutable, so that it is the old one's too
	}
	old := w.crds[group][name]
	switch {
	case old == nil && c == nil:
		return group, false
	case old != nil && c != nil && old.equal(c):
		return group, false
	case c == nil:
		delete(w.crds[group], name)
		delete(w.groupOf, name)
		if len(w.crds[group]) == 0 {
			delete(w.crds, group)
		}
	default:
		if w.crds[group] == nil {
			w.crds[group] = map[string]*crd{}
		}
		w.crds[group][name], w.groupOf[name] = c, group
	}
	if old != nil {
		for _, v := range old.versions {
			if !w.isClaimed(group, v) {
				w.former[schema.GroupVersion{Group: group, Version: v}] = true
			}
		}
	}
	if c != nil {
		for _, v := range c.versions {
			delete(w.former, schema.GroupVersion{Group: group, Version: v})
			// The document had it before this watch.
			if d := w.discovered[group][v]; d != nil && d.service == nil {
				w.dropDiscovered(group, v)
			}
		}
	}
	return group, true
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
func (w *world) setDocument(core bool, document []documentVersion) (groups map[string]bool, alone []schema.GroupVersion, unexplained bool) {
	groups = map[string]bool{}
	listed := make(map[schema.GroupVersion]bool, len(document))
	for _, v := range document {
		listed[v.gv] = true
		if v.skipped || w.belongsToCRDs(v.gv) {
			continue
		}
		if d := w.discovered[v.gv.Group][v.gv.Version]; d == nil || d.service == nil && !d.known {
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
			groups[v.gv.Group] = true
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
				groups[group] = true
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
	if d.known && slices.EqualFunc(d.resources, resources, (*resource).equal) {
		return false
	}
	d.resources, d.known = resources, true
	return true
}

// group makes the table of a group, nil if there is no such group now.
func (w *world) group(name string) *group {
	type candidate struct {
		versionResources
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
		if !d.known {
			continue
		}
		c := candidate{versionResources: versionResources{v, d.resources}, priority: first, rank: d.rank.version}
		if d.service != nil {
			c.priority, c.rank = d.service.versionPriority, 0
			outrank(d.service.groupPriority, 0)
		} else {
			outrank(first, d.rank.group)
		}
		candidates = append(candidates, c)
	}
	for v, resources := range w.crdResources(name) {
		outrank(crdGroupPriority, 0)
		candidates = append(candidates, candidate{versionResources: versionResources{v, resources}, priority: crdVersionPriority})
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
	versions := make([]versionResources, len(candidates))
	for i, c := range candidates {
		versions[i] = c.versionResources
	}
	return newGroup(o, versions)
}

// crdResources are the resources of a group's CRDs by version, but for the versions that are discovery's.
func (w *world) crdResources(group string) map[string][]*resource {
	crds := make([]*crd, 0, len(w.crds[group]))
	for _, c := range w.crds[group] {
		if c.established {
			crds = append(crds, c)
		}
	}
	slices.SortFunc(crds, func(a, b *crd) int { return strings.Compare(a.resource.name, b.resource.name) })
	versions := map[string][]*resource{}
	for _, c := range crds {
		for _, v := range c.versions {
			if w.discovered[group][v] == nil {
				versions[v] = append(versions[v], c.resource)
			}
		}
	}
	return versions
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
