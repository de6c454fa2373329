package integration

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/structured-merge-diff/v6/value"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

var (
	seeds   = flag.Int("seeds", 5, "number of seeds of TestHandlers_GeneratedTemplates")
	record  = flag.String("record", "", "the file to which TestHandlers_GeneratedTemplates appends decisions")
	oneSeed = flag.Uint64("seed", 0, "the only seed of TestHandlers_GeneratedTemplates, if not 0")
)

var (
	//go:embed testdata/templates.yaml
	templatesYAML []byte

	indexes = regexp.MustCompile(`\[[^\]]*\]`)
)

type valueField = value.Field

func newValue(v any) value.Value { return value.NewValueInterface(v) }

const (
	stepsPerSeed = 8
	// maxReconciles is the number of reconciles after which a child must have its desired state.
	maxReconciles = 4
	// maxCorrections is less than the number of corrections that are not delayed.
	maxCorrections = 3
)

// Random templates are applied, and other clients change the child at random. After each step, the child must have all
// fields of the template, and everything that others own, as far as the API server accepts this. A dry run of an
// update decides which result it accepts. The child can be reported only if it accepts none.
//
// Therefore, the following changes must always be repaired: changed and removed values, foreign fields and items,
// edited keys, fields that others applied, cleared and invalid managedFields, and changes through another version. A
// child can be reported
//
//   - if a field or an item of others contradicts the template: the API server refuses any result that has both;
//   - if the child has lost its owner reference and its label, and can belong to someone else;
//   - if the API server refuses all applies, because others added an item without a key;
//   - if an apply leaves a null in a custom resource, because others own a map, but no field of it.
func TestHandlers_GeneratedTemplates(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.config.WarningHandler = rest.NoWarnings{} // some of the kinds are deprecated
	h.client = must(dynamic.NewForConfig(h.config))
	s := newSetting(h)
	samples := s.defineSamples()
	patterns := s.patterns(samples.Group)
	counted := must(dynamic.NewForConfig(intercepted(h.config, countWrites)))
	counts := &tally{n: map[string]int{}}
	t.Cleanup(func() { t.Logf("results: %v", counts.n) })
	first, last := uint64(1), uint64(*seeds)
	if *oneSeed != 0 {
		first, last = *oneSeed, *oneSeed
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			g := newGenerated(t, s, seed)
			g.counted, g.counts, g.pattern = counted, counts, pick(g.random, patterns)
			g.run()
		})
	}
}

// recordDecision appends a decision to the file of the flag -record.
func (g *generated) recordDecision(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, decision []byte) {
	if *record == "" {
		return
	}
	g.counts.mu.Lock()
	defer g.counts.mu.Unlock()
	file, err := os.OpenFile(*record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	g.noError(err)
	_, err = file.Write(append(decision, '\n'))
	g.noError(err)
	g.noError(file.Close())
}

// tally counts results.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tally) add(result string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[result]++
}

type writesKey struct{}

// sentWrites are the write requests of a call.
type sentWrites struct {
	mu       sync.Mutex
	total    int      // including dry runs
	requests []string // without dry runs; see requestText
}

// countWrites adds the write requests to the sentWrites of their context.
func countWrites(r *http.Request, send send) (*http.Response, error) {
	if sent, counts := r.Context().Value(writesKey{}).(*sentWrites); counts && isWrite(r) {
		sent.mu.Lock()
		sent.total++
		if !r.URL.Query().Has("dryRun") {
			resource, name := path.Split(r.URL.Path)
			sent.requests = append(sent.requests, requestText(r.Method, path.Base(resource), name))
		}
		sent.mu.Unlock()
	}
	return send(r)
}

func requestText(method, resource, name string) string { return method + " " + resource + " " + name }

// plannedRequests returns the requests of a plan, up to the first operation that is known after an apply only, and
// whether the plan has no such operation.
func plannedRequests(plan children.Plan) (requests []string, complete bool) {
	for _, operation := range plan.Operations {
		method := http.MethodPatch
		switch operation.Action {
		case children.ActionWait:
			continue
		case children.ActionDelete, children.ActionDeleteWitness:
			method = http.MethodDelete
		}
		if operation.KnownAfterApply {
			return requests, false
		}
		text := requestText(method, operation.GVR.Resource, operation.Name())
		if n := len(requests); operation.Action == children.ActionRecordKinds && n > 0 && requests[n-1] == text {
			continue // one request with AddFinalizer
		}
		requests = append(requests, text)
	}
	return requests, true
}

// patterns reads testdata/templates.yaml, and adds its kinds to those of the Reconcilers.
func (s *setting) patterns(samples string) (patterns []map[string]any) {
	s.Helper()
	var file struct{ Kinds []map[string]any }
	s.noError(yaml.Unmarshal(templatesYAML, &file))
	seen := map[schema.GroupKind]bool{{Kind: "ConfigMap"}: true}
	var types []schema.GroupVersionResource
	for _, pattern := range file.Kinds {
		if pattern["kind!"] == "Sample" {
			pattern["apiVersion!"] = samples + "/" + pattern["apiVersion!"].(string)
		}
		gvk := schema.FromAPIVersionAndKind(pattern["apiVersion!"].(string), pattern["kind!"].(string))
		if !seen[gvk.GroupKind()] {
			s.moreKinds = append(s.moreKinds, children.Kind{GroupKind: gvk.GroupKind()})
			seen[gvk.GroupKind()] = true
		}
		if gvk.Kind == "Sample" {
			types = append(types, gvk.GroupVersion().WithResource("samples"))
		}
	}
	s.mapper, _ = s.mapperOf(append(types, s.parents)...)
	return file.Kinds
}

// generated is the run of one seed.
type generated struct {
	*setting
	random     *rand.Rand
	name       string
	pattern    map[string]any
	counted    dynamic.Interface // counts the requests of reconciles
	counts     *tally
	parent     *unstructured.Unstructured
	reconciler *children.Reconciler

	template    *template
	before      *unstructured.Unstructured // the child after the last reconcile
	restarted   bool                       // whether the Reconciler has not written since it was created
	again       certainty                  // whether the template was applied before
	corrections int                        // the writes of the Reconciler for one template
	result      children.Result            // of the last reconcile
}

type certainty int

const (
	no certainty = iota
	maybe
	yes
)

func newGenerated(t *testing.T, s *setting, seed uint64) *generated {
	h := *s.harness
	h.T = t
	copied := *s
	copied.harness = &h
	g := &generated{setting: &copied, random: rand.New(rand.NewPCG(seed, 0)), name: fmt.Sprintf("seed-%d", seed)}
	return g
}

func (g *generated) run() {
	g.put(g.parents, newObject(g.parents, "Platform", g.namespace, g.name, nil))
	g.restart()
	g.changeTemplate()
	g.before = &unstructured.Unstructured{Object: map[string]any{}}
	g.again = no
	g.Logf("the template is %s", asJSON(g.template.object))
	g.converge(nil, expectation{})
	for range stepsPerSeed {
		if !g.step() {
			break
		}
	}
	g.counts.add("seeds")
	for gvr, name := range map[schema.GroupVersionResource]string{g.template.gvr: g.name, g.parents: g.name} {
		err := g.in(gvr, g.namespace).Delete(g.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			g.Error(err)
		}
	}
}

// restart creates a Reconciler, as if the process was started again.
func (g *generated) restart() {
	g.parent = g.get(g.parents, g.namespace, g.name)
	g.reconciler = g.newReconciler(children.Config{Client: g.counted, RecordDecision: g.recordDecision})
	g.restarted, g.corrections = true, 0
}

// draw returns a random object of the kind of this seed.
func (g *generated) draw() *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: draw(g.random, g.pattern).(map[string]any)}
	object.SetName(g.name)
	return object
}

// versions returns the versions of the kind of this seed.
func (g *generated) versions() []string {
	gv := g.template.gvr.GroupVersion()
	if g.template.gvr.Resource != "samples" {
		return []string{gv.String()}
	}
	return []string{gv.Group + "/v1", gv.Group + "/v2"}
}

// changeTemplate chooses a template that the API server accepts, if it finds one.
func (g *generated) changeTemplate() {
	for range 50 {
		object := g.draw()
		if g.template != nil {
			if g.random.IntN(3) > 0 {
				object.Object = mixed(g.random, g.template.object.Object, object.Object).(map[string]any)
			}
			object.SetAPIVersion(pick(g.random, g.versions()))
		}
		if next, err := g.newTemplate(object); err == nil {
			g.template, g.again, g.corrections = next, no, 0
			return
		}
	}
	if g.template == nil {
		g.Fatalf("no template of %v is accepted", g.pattern["kind!"])
	}
}

// step changes the template and the child at random, and reconciles it. It reports whether the child has converged.
func (g *generated) step() bool {
	g.again = yes
	if g.corrections >= maxCorrections || g.random.IntN(8) == 0 {
		g.Log("the Reconciler is restarted")
		g.restart()
	}
	if g.random.IntN(3) == 0 {
		g.changeTemplate()
		g.Logf("the template is %s", asJSON(g.template.object))
	}
	for range g.random.IntN(3) {
		for range 20 {
			edit, err := g.edit()
			if err == nil {
				g.Log(edit)
				break
			}
		}
	}
	live, err := g.in(g.template.gvr, g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
	g.noError(err)
	annotation := live.GetAnnotations()[platformName+"/applied"]
	if g.again == yes && annotation != g.before.GetAnnotations()[platformName+"/applied"] {
		g.again = maybe
	}
	// Without one of the marks, the child is repaired. Without two, it can belong to someone else.
	hasLabel, hasOwner := live.GetLabels()[platformName+"/parent"] == string(g.parent.GetUID()),
		metav1.GetControllerOf(live) != nil
	if !hasLabel && (annotation == "" || !hasOwner) {
		return g.refuse(live, children.ErrNotOwned)
	}
	return g.converge(live, g.expect(live))
}

// refuse expects that the child is reported, and not changed.
func (g *generated) refuse(live *unstructured.Unstructured, want error) bool {
	for range 2 {
		if _, err := g.reconcile(); !g.isReported(err) || want != nil && !errors.Is(err, want) {
			g.Fatalf("got %v, want %v", err, want)
		}
	}
	now := g.get(g.template.gvr, g.namespace, g.name)
	if diff := cmp.Diff(content(live), content(now)); diff != "" {
		g.Errorf("the child was reported, and changed:\n%s", diff)
	}
	if want != nil {
		g.counts.add("reported: not owned")
		return false
	}
	g.counts.add("reported: refused by the API server")
	return false
}

// isReported reports whether the last reconcile, which returned err, has reported the child.
func (g *generated) isReported(err error) bool {
	return err != nil && len(g.result.Children) == 1 && g.result.Children[0].Err != nil
}

// reconcile reconciles the child, and returns the number of write requests.
func (g *generated) reconcile() (int, error) {
	g.Helper()
	planning, reconciling := &sentWrites{}, &sentWrites{}
	id, desired := g.id(g.parents, g.name), oneStage(g.template.object)
	plan, planErr := g.reconciler.Plan(context.WithValue(g.Context(), writesKey{}, planning), id, g.parent, desired,
		children.PlanOptions{DryRun: true})
	if len(planning.requests) > 0 {
		g.Errorf("a plan has written %q", planning.requests)
	}
	var err error
	g.result, err = g.reconciler.Reconcile(context.WithValue(g.Context(), writesKey{}, reconciling), id, g.parent, desired)
	planned, complete := plannedRequests(plan)
	sent := reconciling.requests
	if !complete && len(sent) > len(planned) {
		sent = sent[:len(planned)]
	}
	if !slices.Equal(planned, sent) || complete && (planErr == nil) != (err == nil) {
		g.Errorf("the plan has the operations %+v and the error %v, and Reconcile has sent %q and returned %v",
			plan.Operations, planErr, reconciling.requests, err)
	}
	g.counts.add(fmt.Sprintf("complete plans: %t", complete))
	return reconciling.total, err
}

// converge reconciles the child until a reconcile sends no write, and compares the child with the expectation. It
// reports whether the child has converged.
func (g *generated) converge(live *unstructured.Unstructured, expected expectation) bool {
	total := 0
	for i := 1; ; i++ {
		writes, err := g.reconcile()
		if err != nil {
			g.Logf("reported: %v", err)
		}
		if total += writes; writes == 0 && err == nil {
			break
		}
		switch {
		case i < maxReconciles:
		case err == nil:
			g.Fatalf("reconcile %d sent %d writes", i, writes)
		case strings.Contains(err.Error(), `Invalid value: "null"`) && g.template.object.GetKind() == "Sample":
			// If another manager owns a map only as such, and all of its fields leave the template, the API server leaves a
			// null behind, and refuses it.
			g.counts.add("reported: an apply leaves a null behind")
			return false
		case len(expected.refused) == 0 && g.canBeApplied():
			g.Fatalf("the child is reported, although the API server accepts its desired state: %v", err)
		default:
			return g.refuse(live, nil)
		}
	}
	g.Logf("converged with %d writes", total)
	if total > 0 {
		g.restarted = false
		g.corrections++
	}
	g.before = g.get(g.template.gvr, g.namespace, g.name)
	for _, problem := range g.missingFields(g.before) {
		g.Errorf("after the reconcile, %s", problem)
	}
	g.checkOwners()
	g.counts.add(fmt.Sprintf("converged with %d writes", total))
	if live == nil {
		return true
	}
	if g.isUnclear(live) {
		g.counts.add("only the fields of the template were compared")
		return !g.Failed()
	}
	if len(expected.accepted) == 0 {
		g.Errorf("the child has converged, although the API server does not accept it: %v", expected.refused)
	}
	var diffs []string
	for _, want := range expected.accepted {
		diff := cmp.Diff(content(want), content(g.before))
		if diff == "" {
			return !g.Failed()
		}
		diffs = append(diffs, diff)
	}
	g.Errorf("the child differs from all expected states:\n%s", strings.Join(diffs, "\n---\n"))
	return false
}

// canBeApplied reports whether the API server accepts any apply. It refuses all of them if someone has added items
// without keys.
func (g *generated) canBeApplied() bool {
	label := newObject(g.template.gvr, g.template.object.GetKind(), g.namespace, g.name, nil)
	label.SetLabels(map[string]string{"model": "x"})
	_, err := g.in(g.template.gvr, g.namespace).Apply(g.Context(), g.name, label, metav1.ApplyOptions{
		FieldManager: "model", DryRun: []string{metav1.DryRunAll},
	})
	return err == nil
}

// checkOwners checks that the Reconciler owns the fields of the template and no others, and that no manager owns them
// only because managedFields were cleared: they would stay when they leave the template.
func (g *generated) checkOwners() {
	g.Helper()
	if len(g.before.GetManagedFields()) == 0 {
		return // a new Reconciler does not restore them as long as the values are right
	}
	ours, others := g.owners(g.before)
	if !ours.Equals(g.template.fields) {
		g.Errorf("the Reconciler owns other fields: %s; it lacks %s",
			ours.Difference(g.template.fields), g.template.fields.Difference(ours))
	}
	for _, other := range others {
		if both := other.fields.Intersection(g.template.fields); other.Manager == beforeFirstApply && !both.Empty() {
			g.Errorf("%s owns %s", other.Manager, both)
		}
	}
}
