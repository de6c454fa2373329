package children

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// textOf returns the operations of a plan, one in each line.
func textOf(plan Plan) string {
	var lines []string
	for _, operation := range plan.Operations {
		line := fmt.Sprintf("%s %s %s", operation.Action, operation.Kind.Kind, operation.Name())
		for _, change := range operation.Changes {
			if !strings.HasPrefix(change.Field, "metadata.") && change.Field != "apiVersion" && change.Field != "kind" {
				line += fmt.Sprintf(", %s: %v -> %v", change.Field, change.From, change.To)
			}
		}
		if operation.KnownAfterApply {
			line += " (known after apply)"
		}
		if operation.Err != nil {
			line += " (refused)"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestPlan(t *testing.T) {
	adopt := newConfigMap("mine", "x")
	adopting := Desired{Stages: [][]Child{{{Object: newConfigMap("mine", "y"), Adopt: true}}}}
	adopt.SetNamespace("default")
	for name, test := range map[string]struct {
		before  []Desired // reconciled before the plan
		objects []*unstructured.Unstructured
		edit    func(*unstructured.Unstructured) // by another client, after that
		deleted bool                             // whether the parent is being deleted
		desired Desired
		want    string
	}{
		"nothing": {},
		"children of two stages": {
			desired: Desired{Stages: [][]Child{Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "y"))}},
			want: `AddFinalizer Widget first
RecordKinds Widget first
Create ConfigMap a, data.key: <nil> -> x
Create ConfigMap b, data.key: <nil> -> y`,
		},
		"a child in another namespace": {
			desired: oneStage(newRemoteConfigMap("a")),
			want: `CreateWitness ConfigMap ` + witnessName + `
AddFinalizer Widget first
RecordKinds Widget first
Create ConfigMap a, data.key: <nil> -> x`,
		},
		"a change": {
			before: []Desired{oneStage(newConfigMap("a", "x"))}, desired: oneStage(newConfigMap("a", "y")),
			want: "Apply ConfigMap a, data.key: x -> y",
		},
		"a field leaves, and one of others stays": {
			before: []Desired{oneStage(newConfigMap("a", "x"))}, edit: func(object *unstructured.Unstructured) {
				object.Object["data"] = map[string]any{"key": "x", "other": "y"}
			},
			desired: oneStage(withData(map[string]any{"new": "z"})),
			want:    "Apply ConfigMap a, data.key: x -> <nil>, data.new: <nil> -> z",
		},
		"a child that is no longer desired": {
			before:  []Desired{oneStage(newConfigMap("a", "x"), newConfigMap("b", "x"))},
			desired: oneStage(newConfigMap("b", "x")), want: "Delete ConfigMap a",
		},
		"stages that are no longer desired": {
			before: []Desired{{Stages: [][]Child{Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "x"))}}},
			want:   "Delete ConfigMap b",
		},
		"an object of nobody": {
			objects: []*unstructured.Unstructured{adopt}, desired: oneStage(newConfigMap("mine", "y")),
			want: "RecordKinds Widget first",
		},
		"an object that is adopted": {
			objects: []*unstructured.Unstructured{adopt}, desired: adopting, want: `RecordKinds Widget first
Adopt ConfigMap mine, data.key: x -> y`,
		},
		"the parent is being deleted": {
			before:  []Desired{oneStage(newRemoteConfigMap("a"))},
			deleted: true, want: "Delete ConfigMap a",
		},
		"the parent is being deleted, and has no children": {
			before:  []Desired{oneStage(newRemoteConfigMap("a")), oneStage(), oneStage()},
			deleted: true, want: "RemoveFinalizer Widget first",
		},
	} {
		for _, dryRun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, dry run: %t", name, dryRun), func(t *testing.T) {
				server := newReconciling(t, append([]*unstructured.Unstructured{newWidget()}, test.objects...)...)
				for _, desired := range test.before {
					_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
					failUnlessRequeued(t, err)
				}
				if test.edit != nil {
					edited := getConfigMap(t, server.Server, "default", "a")
					test.edit(edited)
					objects := server.Resource(configMaps).Namespace("default")
					if _, err := objects.Update(t.Context(), edited, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				if test.deleted {
					now := metav1.Now()
					server.parent.SetDeletionTimestamp(&now)
				}
				checkPlan(t.Context(), t, server, test.desired, PlanOptions{DryRun: dryRun}, test.want)
			})
		}
	}
}

// withData returns the config map a with data.
func withData(data map[string]any) *unstructured.Unstructured {
	object := newConfigMap("a", "")
	object.Object["data"] = data
	return object
}

// checkPlan compares a plan with what Reconcile then writes. The plan itself must change nothing.
func checkPlan(
	ctx context.Context, t *testing.T, server reconciling, desired Desired, options PlanOptions, want string,
) {
	t.Helper()
	server.TakeWrites()
	parent := server.parent.DeepCopy()
	var plans []Plan
	for range 2 { // a plan has no effect on the next one
		plan, _ := server.reconciler.Plan(ctx, first, server.parent, desired, options)
		plans = append(plans, plan)
	}
	if diff := cmp.Diff(textOf(plans[0]), textOf(plans[1])); diff != "" {
		t.Errorf("two plans differ:\n%s", diff)
	}
	if diff := cmp.Diff(parent.Object, server.parent.Object); diff != "" {
		t.Errorf("the plan has changed the parent:\n%s", diff)
	}
	if want != "any" && textOf(plans[0]) != want {
		t.Errorf("the plan is\n%s\nwant\n%s", textOf(plans[0]), want)
	}
	if writes := server.TakeWrites(); len(writes) > 0 && !options.DryRun {
		t.Errorf("the plan wrote %q", writes)
	}
	result, _ := server.reconciler.Reconcile(ctx, first, server.parent, desired)
	writes := server.TakeWrites()
	if planned := writesOf(plans[0]); !slices.Equal(planned, writes) {
		t.Errorf("planned %q, but Reconcile wrote %q", planned, writes)
	}
	if planned, got := outcomesOf(plans[0].Result), outcomesOf(result); !slices.Equal(planned, got) {
		t.Errorf("the plan has the results %q, and Reconcile %q", planned, got)
	}
}

// writesOf returns the requests of a plan as controllertest records them.
func writesOf(plan Plan) (writes []string) {
	for _, operation := range plan.Operations {
		verb := "patch"
		switch operation.Action {
		case ActionCreate, ActionApply, ActionAdopt, ActionCreateWitness:
			verb = "apply"
		case ActionDelete, ActionDeleteWitness:
			verb = "delete"
		case ActionWait:
			continue
		}
		write := verb + " " + operation.GVR.Resource + " " + operation.Name()
		if n := len(writes); operation.Action == ActionRecordKinds && n > 0 && writes[n-1] == write {
			continue // one request with AddFinalizer
		}
		writes = append(writes, write)
	}
	return writes
}

func outcomesOf(result Result) (outcomes []string) {
	for _, child := range result.Children {
		reason := child.Reason
		if child.IsApplied() {
			reason = "" // is known after the apply
		}
		outcomes = append(outcomes, fmt.Sprintf("%s %s %s", child.Name(), child.Outcome, reason))
	}
	return outcomes
}

// Random children, changes by others, lost writes and restarts: a plan always contains what Reconcile then writes.
func TestPlan_IsWhatReconcileWrites(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			server := newReconciling(t, newWidget())
			config, recorded := Config{Client: server}, 0
			config.RecordDecision = func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, decision []byte) {
				recorded++
				replay(t, decision)
			}
			server.reconciler = newReconciler(t, config)
			names := []string{"a", "b", "c", "d"}
			fakeserver.InRun(t, func(ctx context.Context) {
				for range 12 {
					desired := randomDesired(random, names)
					disturb(ctx, t, server, random, names)
					if random.IntN(6) == 0 {
						server.reconciler = newReconciler(t, config) // another process
					}
					checkPlan(ctx, t, server, desired, PlanOptions{}, "any")
				}
			})
			if recorded == 0 {
				t.Error("no decision was recorded")
			}
		})
	}
}

// replay decides a recorded case again.
func replay(t *testing.T, recorded []byte) {
	t.Helper()
	var decision decide.Case
	if err := json.Unmarshal(recorded, &decision); err != nil {
		t.Fatal(err)
	}
	if err := decision.Replay(); err != nil {
		t.Errorf("%v:\n%s", err, recorded)
	}
}

// randomDesired returns some of the config maps with the given names, in up to three stages.
func randomDesired(random *rand.Rand, names []string) (desired Desired) {
	desired.Stages = make([][]Child, random.IntN(3)+1)
	for _, name := range names {
		stage := random.IntN(len(desired.Stages) + 1)
		if stage == len(desired.Stages) {
			continue
		}
		object := newConfigMap(name, fmt.Sprint(random.IntN(3)))
		if random.IntN(4) == 0 {
			object.SetNamespace("other")
		}
		desired.Stages[stage] = append(desired.Stages[stage], Child{
			Object: object, Adopt: random.IntN(3) == 0, Retain: random.IntN(8) == 0,
		})
	}
	return desired
}

// disturb changes an object as another client does.
func disturb(ctx context.Context, t *testing.T, server reconciling, random *rand.Rand, names []string) {
	t.Helper()
	name := names[random.IntN(len(names))]
	objects := server.Resource(configMaps).Namespace([]string{"default", "other"}[random.IntN(2)])
	current, err := objects.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil && random.IntN(2) == 0:
		object := newConfigMap(name, "foreign")
		object.SetNamespace("")
		_, err = objects.Create(ctx, object, metav1.CreateOptions{})
	case err != nil:
		err = nil
	case random.IntN(3) == 0:
		err = objects.Delete(ctx, name, metav1.DeleteOptions{})
	case random.IntN(3) == 0:
		current.SetLabels(nil)
		_, err = objects.Update(ctx, current, metav1.UpdateOptions{})
	case random.IntN(3) == 0:
		current.SetOwnerReferences(nil)
		_, err = objects.Update(ctx, current, metav1.UpdateOptions{})
	default:
		current.Object["data"] = map[string]any{"key": "edited"}
		_, err = objects.Update(ctx, current, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Neither the keys nor the values of a Secret are in a plan.
func TestPlan_LeavesOutSecrets(t *testing.T) {
	secret := func(value string) *unstructured.Unstructured {
		object := newObject("v1", "Secret", "default", "s")
		object.Object["data"] = map[string]any{"password": value, "key-" + value: value}
		object.SetLabels(map[string]string{"app": value})
		object.SetAnnotations(map[string]string{"copy": value})
		return object
	}
	want := []FieldChange{
		{Field: "data"}, {Field: "metadata.annotations"}, {Field: "metadata.labels.app", From: "old", To: "new"},
	}
	if diff := cmp.Diff(want, changesOf(desire.SecretKind.GroupKind(), secret("old"), secret("new"))); diff != "" {
		t.Error(diff)
	}
}

// The cache holds only children. An object of another owner, which it lacks, must not be planned as a new one.
func TestPlan_ReadsWhatTheCacheLacks(t *testing.T) {
	for adopt, want := range map[bool]string{
		false: "RecordKinds Widget first", true: "RecordKinds Widget first\nAdopt ConfigMap mine, data.key: x -> y",
	} {
		mine := newConfigMap("mine", "x")
		mine.SetNamespace("default")
		server := newReconciling(t, newWidget(), mine)
		server.reconciler = newReconciler(t, Config{Client: server, Cache: fakeserver.Cache{}})
		desired := Desired{Stages: [][]Child{{{Object: newConfigMap("mine", "y"), Adopt: adopt}}}}
		plan, _ := server.reconciler.Plan(t.Context(), first, server.parent, desired, PlanOptions{})
		if got := textOf(plan); got != want {
			t.Errorf("with Adopt %t, the plan is\n%s\nwant\n%s", adopt, got, want)
		}
		result, _ := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
		if planned, got := outcomesOf(plan.Result), outcomesOf(result); !slices.Equal(planned, got) {
			t.Errorf("with Adopt %t, the plan has the results %q, and Reconcile %q", adopt, planned, got)
		}
	}
}

// The API server refuses a deletion in a dry run.
func TestPlan_DryRunsDeletions(t *testing.T) {
	server := newReconciling(t, newWidget())
	desired := oneStage(newConfigMap("a", "x"))
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
		t.Fatal(err)
	}
	server.PrependReactor("delete", "configmaps", failWith(errors.New("denied")))
	plan, err := server.reconciler.Plan(t.Context(), first, server.parent, Desired{}, PlanOptions{DryRun: true})
	if got := textOf(plan); err == nil || got != "Delete ConfigMap a (refused)" {
		t.Errorf("got %v and the plan\n%s", err, got)
	}
}

// A namespace that the plan creates does not exist in a dry run.
func TestPlan_AssumesChildrenOfNewNamespaces(t *testing.T) {
	server := newReconciling(t, newWidget())
	server.reconciler = newReconciler(t, Config{Client: server, Kinds: []Kind{
		{GroupKind: configMapKind.GroupKind, CrossNamespace: true},
		{GroupKind: namespaceKind.GroupKind, CrossNamespace: true},
	}})
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		isMissing := action.GetNamespace() == "new" && server.Get(dynamiccontroller.ObjectIdentifiers{
			GVR: namespaces, NamespacedKey: "new",
		}) == nil
		return isMissing, nil, apierrors.NewNotFound(namespaces.GroupResource(), "new")
	})
	child := newConfigMap("a", "x")
	child.SetNamespace("new")
	desired := oneStage(newObject("v1", "Namespace", "", "new"), child)
	plan, err := server.reconciler.Plan(t.Context(), first, server.parent, desired, PlanOptions{DryRun: true})
	const want = "Create ConfigMap a, data.key: <nil> -> x (known after apply)"
	if got := textOf(plan); err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("got %v and the plan\n%s", err, got)
	}
}

func TestFieldChanges(t *testing.T) {
	before := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"example.com/app": "x"}},
		"spec":     map[string]any{"replicas": int64(3), "ports": []any{map[string]any{"port": int64(80)}}, "gone": "x"},
	}}
	after := merged(before, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"example.com/app": "y"}},
		"spec": map[string]any{
			"replicas": 3, "ports": []any{map[string]any{"port": 80}}, "gone": nil, "strategy": map[string]any{"type": "A"},
		},
	})
	want := []FieldChange{
		{Field: `metadata.labels["example.com/app"]`, From: "x", To: "y"}, {Field: "spec.gone", From: "x"},
		{Field: "spec.strategy.type", To: "A"},
	}
	if diff := cmp.Diff(want, changesOf(configMapKind.GroupKind, before, after)); diff != "" {
		t.Error(diff)
	}
}
