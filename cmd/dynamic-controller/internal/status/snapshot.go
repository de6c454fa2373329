package status

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/restmapper"
)

// Sources provides the state of the process. All fields are required. The functions must be safe for concurrent use.
type Sources struct {
	Version    string
	Started    time.Time
	Leadership func() replica.Status
	CheckCache func() error // an error if types that existed at startup have not been listed
	Types      func() []dynamiccontroller.TypeStatus
	Reconciles *Reconciles
	Blueprints func() []acceptance.Summary
	Mapper     interface {
		HasSynced() bool
		Errors() []restmapper.Error
	}
	Kinds func() int64 // the number of mapped kinds
}

// Snapshot builds the document. It sends no requests, and its cost is linear in the number of types and Blueprints.
func (s *Sources) Snapshot() *Replica {
	leadership := s.Leadership()
	doc := &Replica{
		APIVersion: APIVersion, Kind: Kind, Time: time.Now().UTC(), Version: s.Version, Started: s.Started.UTC(),
		Leadership: Leadership{
			Identity: leadership.Identity, Leading: leadership.Leading, Term: leadership.Term, Leader: leadership.Leader,
		},
		Caches:  Caches{Synced: true},
		Summary: Summary{Types: map[string]int{}, Blueprints: map[string]int{}, Reconciles: map[string]uint64{}},
		Types:   []Type{}, Blueprints: []Blueprint{}, Parked: Parked{Objects: []ParkedObject{}},
		Mapper: s.mapper(),
	}
	if err := s.CheckCache(); err != nil {
		doc.Caches = Caches{Message: cut(err.Error())}
	}
	types := s.Types()
	blueprints := s.Blueprints()
	doc.addBlueprints(blueprints, types)
	doc.addTypes(types, blueprints, s.Reconciles)
	doc.Parked.Total = doc.Summary.Parked
	slices.SortFunc(doc.Parked.Objects, newerFirst)
	doc.Parked.Objects = slices.Clip(doc.Parked.Objects[:min(len(doc.Parked.Objects), MaxParked)])
	return doc
}

func newerFirst(a, b ParkedObject) int {
	return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Resource.Resource, b.Resource.Resource),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (s *Sources) mapper() Mapper {
	m := Mapper{Synced: s.Mapper.HasSynced(), Kinds: s.Kinds(), Errors: []MapperError{}}
	errs := s.Mapper.Errors()
	for _, err := range errs[:min(len(errs), MaxMapperErrors)] {
		m.Errors = append(m.Errors, MapperError{
			Source: string(err.Source), GroupVersion: err.GroupVersion.String(), Error: cut(err.Err.Error()),
			Since: err.Since.UTC(),
		})
	}
	return m
}

func (d *Replica) addTypes(
	types []dynamiccontroller.TypeStatus, blueprints []acceptance.Summary, reconciles *Reconciles,
) {
	definedBy := make(map[schema.GroupVersionResource]*acceptance.Summary, len(blueprints))
	for i := range blueprints {
		// A rejected Blueprint can name a type that another Blueprint serves.
		if b := &blueprints[i]; definedBy[b.GVR] == nil || b.ServedGeneration != 0 {
			definedBy[b.GVR] = b
		}
	}
	for i := range types {
		t := newType(&types[i], reconciles)
		switch b := definedBy[types[i].GVR]; {
		case types[i].GVR == blueprint.GroupVersionResource:
			t.Kind = blueprint.GroupVersionKind.Kind
		case b != nil:
			t.Kind, t.Blueprint = b.Kind, b.Name
		}
		d.Types = append(d.Types, t)
		d.Summary.add(&t)
		for _, parked := range types[i].NewestParked {
			d.Parked.Objects = append(d.Parked.Objects, newParked(t.Resource, parked))
		}
	}
}

func newType(t *dynamiccontroller.TypeStatus, reconciles *Reconciles) Type {
	out := Type{
		Resource: Resource{t.GVR.Group, t.GVR.Version, t.GVR.Resource},
		State:    string(t.State), Message: cut(t.Message), Since: t.Since.UTC(), Synced: t.Synced,
		Objects: t.Objects, Bytes: t.Bytes, Failing: t.Failing, Parked: t.Parked,
		Queue: Queue{
			Live: t.Live, Background: t.Background, Delayed: t.Delayed, Running: t.Running,
			OldestSeconds: t.Oldest.Seconds(),
		},
		Watches: len(t.Secondaries),
	}
	if t.Replacement != nil {
		out.Replacing = string(t.Replacement.State)
	}
	var took time.Duration
	out.Reconciles, took = reconciles.of(t.GVR)
	out.Seconds = took.Seconds()
	for _, w := range t.Secondaries {
		if isFailing(w.State) && len(out.FailingWatches) < MaxFailingWatches {
			out.FailingWatches = append(out.FailingWatches, Watch{
				Resource: nameOf(w.GVR), State: string(w.State), Message: cut(w.Message), Since: w.Since.UTC(),
			})
		}
	}
	return out
}

func isFailing(state dynamiccontroller.TypeState) bool {
	switch state {
	case dynamiccontroller.TypeNotFound, dynamiccontroller.TypeForbidden, dynamiccontroller.TypeFailing:
		return true
	}
	return false
}

func (s *Summary) add(t *Type) {
	s.Types[t.State]++
	s.Objects += t.Objects
	s.Bytes += t.Bytes
	s.Failing += t.Failing
	s.Parked += t.Parked
	s.Queue.Live += t.Queue.Live
	s.Queue.Background += t.Queue.Background
	s.Queue.Delayed += t.Queue.Delayed
	s.Queue.Running += t.Queue.Running
	s.Queue.OldestSeconds = max(s.Queue.OldestSeconds, t.Queue.OldestSeconds)
	for outcome, n := range t.Reconciles {
		s.Reconciles[outcome] += n
	}
}

func newParked(of Resource, p dynamiccontroller.ParkedObject) ParkedObject {
	namespace, name, namespaced := strings.Cut(p.Key, "/")
	if !namespaced {
		namespace, name = "", p.Key
	}
	return ParkedObject{
		Resource: of, Namespace: namespace, Name: name, Failures: p.Failures, Error: cut(p.LastError), Since: p.Since.UTC(),
	}
}

func (d *Replica) addBlueprints(blueprints []acceptance.Summary, types []dynamiccontroller.TypeStatus) {
	watches := make(map[schema.GroupVersionResource]*dynamiccontroller.TypeStatus, len(types))
	for i := range types {
		watches[types[i].GVR] = &types[i]
	}
	for _, state := range acceptance.AllStates {
		d.Summary.Blueprints[string(state)] = 0
	}
	for i := range blueprints {
		b := newBlueprint(&blueprints[i])
		if b.Reason == "" && b.ServedGeneration != 0 {
			b.Reason, b.Message = watchProblem(watches[blueprints[i].GVR])
		}
		d.Blueprints = append(d.Blueprints, b)
		d.Summary.Blueprints[b.State]++
	}
}

// watchProblem returns a reason and an error message if a type or its children cannot be watched.
func watchProblem(t *dynamiccontroller.TypeStatus) (reason, message string) {
	if t == nil {
		return "", ""
	}
	if isFailing(t.State) {
		return string(t.State), cut(t.Message)
	}
	for _, w := range t.Secondaries {
		if isFailing(w.State) {
			return string(w.State), cut(nameOf(w.GVR) + " cannot be watched: " + w.Message)
		}
	}
	return "", ""
}

func newBlueprint(b *acceptance.Summary) Blueprint {
	out := Blueprint{
		Name: b.Name, State: string(b.State), Reason: b.Reason, Message: cut(b.Message), Generation: b.Generation,
		ServedGeneration: b.ServedGeneration, Revision: b.Revision,
		OlderRevisions: b.Older[:min(len(b.Older), MaxOlderRevisions)], Resources: []BlueprintResource{},
	}
	if !b.GVR.Empty() {
		out.Type = &BlueprintType{Resource: Resource{b.GVR.Group, b.GVR.Version, b.GVR.Resource}, Kind: b.Kind}
	}
	if p := b.Progress; p != nil {
		out.Rollout = &Rollout{Updated: p.Updated, Total: p.Total, Stopped: p.Stopped, Stalled: p.Stalled}
	}
	for _, t := range b.Templates[:min(len(b.Templates), MaxResources)] {
		apiVersion, kind := t.GVK.ToAPIVersionAndKind()
		out.Resources = append(out.Resources, BlueprintResource{
			ID: t.ID, APIVersion: apiVersion, Kind: kind, Needs: t.Needs, External: t.Reference, Collection: t.Collection,
		})
	}
	return out
}

// nameOf returns a GVR in the form that kubectl accepts.
func nameOf(gvr schema.GroupVersionResource) string {
	return Resource{gvr.Group, gvr.Version, gvr.Resource}.String()
}

// String returns the type in the form that kubectl accepts.
func (r Resource) String() string {
	if r.Group == "" {
		return r.Resource + "." + r.Version
	}
	return r.Resource + "." + r.Version + "." + r.Group
}

// cut shortens a text to MaxMessageBytes.
func cut(text string) string {
	const more = "..."
	if len(text) <= MaxMessageBytes {
		return text
	}
	end := MaxMessageBytes - len(more)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}
