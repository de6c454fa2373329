package acceptance

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func TestRevisionName_DependsOnBlueprintAndSpec(t *testing.T) {
	nameOf := func(change func(*blueprint.Blueprint)) string {
		t.Helper()
		b := generations("Wheel")[0]
		change(b)
		name, err := revisionName(b)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	same := nameOf(func(*blueprint.Blueprint) {})
	for what, test := range map[string]struct {
		change func(*blueprint.Blueprint)
		same   bool
	}{
		"another generation":    {func(b *blueprint.Blueprint) { b.Generation = 7 }, true},
		"another history limit": {func(b *blueprint.Blueprint) { b.Spec.RevisionHistoryLimit = ptr.To[int32](3) }, true},
		"another spec":          {func(b *blueprint.Blueprint) { b.Spec = making("Brake") }, false},
		"another Blueprint":     {func(b *blueprint.Blueprint) { b.UID = "v" }, false},
	} {
		if got := nameOf(test.change); (got == same) != test.same {
			t.Errorf("with %s: got name %s; otherwise %s", what, got, same)
		}
	}
	for _, name := range []string{"a", strings.Repeat("a", apivalidation.DNS1123SubdomainMaxLength),
		strings.Repeat("a.", 126) + "a"} {
		got := nameOf(func(b *blueprint.Blueprint) { b.Name = name })
		if problems := apivalidation.IsDNS1123Subdomain(got); len(problems) > 0 {
			t.Errorf("Blueprint %s: invalid revision name %s: %v", name, got, problems)
		}
		if problems := apivalidation.IsValidLabelValue(instances.LabelValue(name)); len(problems) > 0 {
			t.Errorf("Blueprint %s: invalid label value %s: %v", name, instances.LabelValue(name), problems)
		}
	}
}

func TestRestore_ReturnsTheStoredSpec(t *testing.T) {
	b := generations("Wheel")[0]
	b.Spec.Resources[0].Template["size"] = int64(3)
	r := stored(t, b, 4)
	newest := generations("Wheel", "Brake")[1]
	newest.Spec.DeletionPolicy, newest.Spec.RevisionHistoryLimit = blueprint.Delete, ptr.To[int32](2)
	p, _ := newTestController(nil, nil)
	add(t, p, r)
	got, err := p.definitions.store.restore(t.Context(), newest, r)
	if err != nil {
		t.Fatal(err)
	}
	if got.Generation != 1 || got.Spec.Resources[0].Template["kind"] != "Wheel" ||
		got.Spec.Resources[0].Template["size"] != int64(3) ||
		got.Spec.DeletionPolicy != blueprint.Delete || *got.Spec.RevisionHistoryLimit != 2 {
		t.Errorf("restored: %+v", got)
	}
	if newest.Spec.Resources[0].Template["kind"] != "Brake" {
		t.Error("the newest generation was changed")
	}
}

// A replica of a newer version has stored a spec with a field that this version does not support.
func TestRestore_MarksUnknownFieldsOfTheStoredSpec(t *testing.T) {
	r := stored(t, generations("Wheel")[0], 4)
	value, _ := storedObjects.Load(r.UID)
	object := value.(*unstructured.Unstructured).DeepCopy()
	if err := unstructured.SetNestedField(object.Object, "x", "data", "spec", "future"); err != nil {
		t.Fatal(err)
	}
	storedObjects.Store(r.UID, object)
	newest := generations("Wheel", "Brake")[1]
	newest.Annotations = map[string]string{blueprint.UnknownFieldsAnnotation: "other fields", "note": "x"}
	p, _ := newTestController(nil, nil)
	add(t, p, r)
	got, err := p.definitions.store.restore(t.Context(), newest, r)
	if err != nil {
		t.Fatal(err)
	}
	if want := `unknown field "future"`; got.Annotations[blueprint.UnknownFieldsAnnotation] != want {
		t.Errorf("got annotations %v, want %s", got.Annotations, want)
	}
	if _, err := blueprint.Compile(got, blueprint.Options{}); err == nil ||
		!strings.Contains(err.Error(), `spec: unknown field "future"; this replica runs an older version`) {
		t.Errorf("got error %v", err)
	}
	if newest.Annotations[blueprint.UnknownFieldsAnnotation] != "other fields" {
		t.Error("the newest generation was changed")
	}
}

// A Blueprint can have a hundred stored revisions. They can remain after the Blueprint was deleted.
func TestReadRevision_DropsTheSpec(t *testing.T) {
	const count, size = 30, 1 << 20
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // the first collection keeps the pooled buffers of encoding/json
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	b := generations("Wheel")[0]
	before := heap()
	var cached []any
	for i := range count {
		b.Spec.Resources[0].Template["text"] = strings.Repeat("x", size)
		object, err := newRevision("system", fmt.Sprint("r", i), b, int64(i))
		if err != nil {
			t.Fatal(err)
		}
		r, err := readRevision(object)
		if err != nil {
			t.Fatal(err)
		}
		cached = append(cached, r)
	}
	b.Spec = blueprint.Spec{}
	if taken := heap() - before; taken > size {
		t.Errorf("%d cached revisions of 1 MiB take %d KiB", count, taken>>10)
	}
	runtime.KeepAlive(cached)
}

func TestReadRevision_IgnoresMalformedRevisions(t *testing.T) {
	b := generations("Wheel")[0]
	for name, change := range map[string]func(data map[string]any){
		"no data":                    func(data map[string]any) { clear(data) },
		"a newer format":             func(data map[string]any) { data["format"] = int64(2) },
		"no UID":                     func(data map[string]any) { delete(data, "uid") },
		"no name":                    func(data map[string]any) { delete(data, "blueprint") },
		"a UID that is not a string": func(data map[string]any) { data["uid"] = map[string]any{} },
		"no spec":                    func(data map[string]any) { delete(data, "spec") },
		"a spec that is a list":      func(data map[string]any) { data["spec"] = []any{} },
		"resources that are not a list": func(data map[string]any) {
			data["spec"].(map[string]any)["resources"] = "all"
		},
		"a template that is not an object": func(data map[string]any) {
			data["spec"].(map[string]any)["resources"].([]any)[0].(map[string]any)["template"] = "x"
		},
	} {
		t.Run(name, func(t *testing.T) {
			object, err := newRevision("system", "malformed", b, 1)
			if err != nil {
				t.Fatal(err)
			}
			change(object.Object["data"].(map[string]any))
			kept, err := readRevision(object.DeepCopy())
			if err == nil {
				t.Fatalf("the malformed revision was read as %+v", kept)
			}
			// The engine's cache keeps objects for which a transform fails.
			d, p := decided(t, b, []*revision{stored(t, b, 1)}, wheel)
			if d.cleansUpOnly() {
				t.Fatal("the valid revision is not served")
			}
			if err := p.engine.Secondary.Add(object); err != nil {
				t.Fatal(err)
			}
			if h, err := p.definitions.cache.history(b.Name); err != nil || len(h) != 1 {
				t.Errorf("got history %v, %v", h, err)
			}
		})
	}
}

func TestHistory_Beyond(t *testing.T) {
	at := func(seconds int64, name, uid string, generation, number int64) *revision {
		r := &revision{blueprint: "websites", blueprintUID: typesUID(uid), generation: generation, number: number}
		r.Name, r.CreationTimestamp = name, metav1.Unix(seconds, 0)
		return r
	}
	h := history{
		at(1, "earlier-1", "before", 7, 1), at(2, "earlier-2", "before", 9, 2),
		at(3, "again", "u", 9, 4), // generations 1 and 9
		at(4, "second", "u", 2, 2), at(5, "third", "u", 5, 3),
	}
	for limit, want := range [][]string{
		{"third", "second", "earlier-2", "earlier-1"},
		{"second", "earlier-2", "earlier-1"},
		{"earlier-2", "earlier-1"},
		{"earlier-1"},
		nil,
		nil,
	} {
		var got []string
		for _, r := range h.beyond("u", limit) {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: got %q to delete, want %q", limit, got, want)
		}
	}
	if newest := h.newest("u"); newest.Name != "again" {
		t.Errorf("the newest is %s", newest.Name)
	}
	if next := h.nextNumber("u"); next != 5 {
		t.Errorf("got next number %d", next)
	}
}

// storing is a leader whose cache is updated by calling see.
type storing struct {
	*testController
	server *platformtest.Server
	t      *testing.T
}

func newStoring(t *testing.T, b *blueprint.Blueprint) *storing {
	t.Helper()
	live := asObject(t, b)
	live.SetGroupVersionKind(blueprint.GroupVersionKind)
	p, _ := newTestController([]*unstructured.Unstructured{live}, nil, wheel, brake)
	s := &storing{testController: p, server: platformtest.NewServer(nil, live), t: t}
	s.use(s.server, nil)
	return s
}

// store stores the spec of a generation after creating or updating the Blueprint in the API server.
func (s *storing) store(b *blueprint.Blueprint) error {
	s.t.Helper()
	live := asObject(s.t, b)
	live.SetGroupVersionKind(blueprint.GroupVersionKind)
	if err := s.server.Tracker().Update(blueprints, live, ""); err != nil {
		s.t.Fatal(err)
	}
	name, err := revisionName(b)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = s.blueprints.store.store(s.t.Context(), b, decision{
		uid: b.UID, generation: b.Generation,
		validation: validation{revision: &servedRevision{Revision: instances.Revision{Name: name}}},
	})
	return err
}

// see updates the cache from the server. It returns the numbers of the revisions by the kind of their first template.
func (s *storing) see() map[string]int64 {
	s.t.Helper()
	list, err := s.blueprints.store.revisions().List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	engine, numbers := s.engine, map[string]int64{}
	for _, old := range engine.Secondary.List() {
		_ = engine.Secondary.Delete(old)
	}
	for i := range list.Items {
		read, err := readRevision(&list.Items[i])
		if err != nil {
			s.t.Fatal(err)
		}
		r := read.(*revision)
		add(s.t, s.testController, r)
		numbers[r.kinds[0].Kind] = r.number
	}
	return numbers
}

func TestStore_StoresEachSpecOnce(t *testing.T) {
	all := generations("Wheel", "Brake", "Wheel", "Wheel")
	all[3].Spec.RevisionHistoryLimit = ptr.To[int32](3)
	s := newStoring(t, all[0])
	for i, want := range []map[string]int64{
		{"Wheel": 1},
		{"Wheel": 1, "Brake": 2},
		{"Wheel": 3, "Brake": 2}, // applied again
		{"Wheel": 3, "Brake": 2}, // with another history limit
	} {
		for range 2 { // the cache is not updated in between
			if err := s.store(all[i]); err != nil {
				t.Fatal(err)
			}
		}
		got := s.see()
		if !maps.Equal(got, want) {
			t.Errorf("generation %d: got stored revisions %v, want %v", i+1, got, want)
		}
		s.server.Took()
		if err := s.store(all[i]); err != nil {
			t.Fatal(err)
		}
		if writes := s.server.Took(); len(writes) > 0 {
			t.Errorf("generation %d was stored again: %q", i+1, writes)
		}
		if h, _ := s.definitions.cache.history("websites"); h.newest("u").generation != all[i].Generation {
			t.Errorf("generation %d: got newest revision %+v", i+1, h.newest("u"))
		}
	}
	// A leader with an outdated Blueprint in its cache does not restore an old spec.
	s.server.Took()
	if stored, err := s.blueprints.store.store(t.Context(), all[1], decision{validation: validation{
		revision: &servedRevision{Revision: instances.Revision{Name: "any"}},
	}}); err != nil || stored {
		t.Errorf("an old generation was stored: %t, %v", stored, err)
	}
	if writes := s.server.Took(); len(writes) > 0 {
		t.Errorf("an old generation was stored again: %q", writes)
	}
}

func TestStore_ChecksTheBlueprintInTheAPIServer(t *testing.T) {
	for name, change := range map[string]func(live *unstructured.Unstructured){
		"another UID":        func(live *unstructured.Unstructured) { live.SetUID("another") },
		"another generation": func(live *unstructured.Unstructured) { live.SetGeneration(2) },
		"being deleted": func(live *unstructured.Unstructured) {
			live.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			s := newStoring(t, b)
			live := asObject(t, b)
			live.SetGroupVersionKind(blueprint.GroupVersionKind)
			change(live)
			if err := s.server.Tracker().Update(blueprints, live, ""); err != nil {
				t.Fatal(err)
			}
			wasStored, err := s.blueprints.store.store(t.Context(), b,
				decision{validation: validation{revision: &servedRevision{Revision: instances.Revision{Name: "any"}}}})
			if writes := s.server.Took(); err != nil || wasStored || len(writes) > 0 {
				t.Errorf("stored %t, got error %v and writes %q", wasStored, err, writes)
			}
		})
	}
}

func TestStore_RejectsARevisionOfAnotherBlueprint(t *testing.T) {
	b := generations("Wheel")[0]
	s := newStoring(t, b)
	name, err := revisionName(b)
	if err != nil {
		t.Fatal(err)
	}
	other := generations("Brake")[0]
	other.UID = "another"
	object, err := newRevision("system", name, other, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.server.Tracker().Add(object); err != nil {
		t.Fatal(err)
	}
	if err := s.store(b); err == nil || !strings.Contains(err.Error(), "belongs to Blueprint websites with UID another") {
		t.Errorf("got error %v", err)
	}
}

func TestStore_ReturnsErrors(t *testing.T) {
	b := generations("Wheel")[0]
	s := newStoring(t, b)
	name, err := revisionName(b)
	if err != nil {
		t.Fatal(err)
	}
	s.server.Fails("create", name, apierrors.NewForbidden(controllerRevisions.GroupResource(), name, nil))
	if err := s.store(b); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system/"+name) {
		t.Errorf("got error %v", err)
	}
}
