package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// read parses an object.
func read(text string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = object.UnmarshalJSON(data)
	}
	if err != nil {
		panic(err)
	}
	return object
}

const metadata = "creationTimestamp: 2026-01-02T03:00:00Z, generation: 2"

// condition returns a condition for the newest generation.
func condition(kind, status, reason, message string) string {
	return "{type: " + kind + ", status: '" + status + "', reason: " + reason + ", message: '" + message +
		"', observedGeneration: 2, lastTransitionTime: 2026-01-02T03:00:00Z}"
}

// blueprintWith returns a Blueprint with the given conditions. Without conditions, it returns a served Blueprint.
func blueprintWith(metadataFields string, conditions ...string) *unstructured.Unstructured {
	if conditions == nil {
		conditions = []string{condition("Accepted", "True", "Compiled", ""),
			condition("TypeEstablished", "True", "Established", ""), condition("Serving", "True", "Serving", "is served")}
	}
	return read("{apiVersion: platform.example.com/v1alpha1, kind: Blueprint, metadata: {name: sites, " + metadata +
		metadataFields + "}, status: {conditions: [" + strings.Join(conditions, ", ") + "]}}")
}

// instanceWith returns an instance of the Blueprint sites.
func instanceWith(b *unstructured.Unstructured, metadataFields string, conditions ...string) *Object {
	return &Object{
		Unstructured: read("{apiVersion: shop.example.com/v1, kind: Site, metadata: {name: s, namespace: shop, uid: u, " +
			metadata + metadataFields + "}, status: {conditions: [" + strings.Join(conditions, ", ") + "]}}"),
		Resource: schema.GroupResource{Group: "shop.example.com", Resource: "sites"},
		Owner:    &Owner{Name: "sites", Blueprint: b},
	}
}

func (o *Object) with(children ...*Object) *Object {
	o.Children = children
	return o
}

// child returns a child in a stage.
func child(kind, name, metadataFields, more string) *Object {
	return &Object{
		Unstructured: read("{apiVersion: v1, kind: " + kind + ", metadata: {name: " + name + ", namespace: shop, " +
			metadata + metadataFields + "}" + more + "}"),
		Resource: schema.GroupResource{Resource: strings.ToLower(kind) + "s"},
	}
}

const (
	stage0   = ", annotations: {platform.example.com/resource: a}"
	stage1   = ", annotations: {platform.example.com/resource: b, platform.example.com/stage: '1'}"
	deleted  = ", deletionTimestamp: 2026-01-02T03:04:00Z"
	paused   = ", annotations: {platform.example.com/paused: 'true'}"
	unbound  = ", status: {phase: Pending}"
	held     = deleted + ", finalizers: [example.com/x]"
	ownHeld  = deleted + ", finalizers: [platform.example.com/children, foregroundDeletion]"
	pvc      = "PersistentVolumeClaim"
	rejected = "spec.resources[0].template: unknown kind Foo"
)

var (
	ready   = condition("Ready", "True", "Ready", "all 2 resources are ready")
	waiting = condition("Ready", "False", "Waiting", `a: waiting for readyWhen "x"`)
	failed  = condition("Ready", "False", "Rejected", "a: ConfigMap shop/a: too long")
)

func event(reason, note string, ago time.Duration) eventsv1.Event {
	return eventsv1.Event{
		Reason: reason, Note: note, Type: "Warning", EventTime: metav1.NewMicroTime(now.Add(-ago)),
		ReportingController: events.ReportingController,
	}
}

func TestExplain(t *testing.T) {
	served := blueprintWith("")
	notAccepted := blueprintWith("", condition("Accepted", "False", "Invalid", rejected),
		condition("TypeEstablished", "False", "NotDefined", "does not exist"),
		condition("Serving", "False", "NothingAccepted", "no generation has been accepted"))
	rejectedLater := blueprintWith("", condition("Accepted", "False", "Invalid", rejected),
		condition("TypeEstablished", "True", "Established", ""), condition("Serving", "True", "Serving", "1 is served"))
	servedWith := func(generation int64, message string) *unstructured.Unstructured {
		b := blueprintWith("", condition("Accepted", "True", "Compiled", ""),
			condition("TypeEstablished", "True", "Established", ""), condition("Serving", "True", "Serving", message))
		b.Object["status"].(map[string]any)["served"] = map[string]any{"generation": generation}
		return b
	}
	const newest = 2
	notStored := servedWith(1, "generation 1 is served; generation 2 is accepted but not served: no")
	notServed := servedWith(1, "generation 1 is served")
	notWatched := servedWith(newest, "generation 2 is served; secrets.v1 cannot be watched: forbidden")
	counted := servedWith(newest, "generation 2 is served")
	counted.Object["status"].(map[string]any)["instances"] = map[string]any{
		"total": int64(9), "ready": int64(3), "failing": int64(1),
	}
	parked := instanceWith(served, "", failed)
	parked.Events = []eventsv1.Event{event("Failed", "", 3*time.Minute), event("Parked", "", time.Minute)}
	parkedBefore := instanceWith(served, "", failed)
	parkedBefore.Events = []eventsv1.Event{event("Parked", "", time.Hour)}
	parkedByOther := instanceWith(served, "", failed)
	parkedByOther.Events = []eventsv1.Event{event("Parked", "", time.Minute)}
	parkedByOther.Events[0].ReportingController = "example.com/other"
	retried := instanceWith(served, "", failed)
	retried.Events = []eventsv1.Event{event("Failed", "", time.Minute)}
	parkedWaiting := instanceWith(served, "", waiting)
	parkedWaiting.Events = parked.Events
	parkedOlder := instanceWith(served, "", strings.Replace(failed, "observedGeneration: 2", "observedGeneration: 1", 1))
	parkedOlder.Events = parked.Events
	parkedBlueprint := &Object{Unstructured: notAccepted, Events: parked.Events}
	recovered := instanceWith(served, "", ready)
	recovered.Events = parked.Events
	for name, test := range map[string]struct {
		object *Object
		state  State
		causes []string // as "object: reason", in order
		notes  []string
	}{
		"a ready instance is healthy":     {object: instanceWith(served, "", ready), state: Ready},
		"a served Blueprint is healthy":   {object: &Object{Unstructured: served}, state: Ready},
		"a recovered instance is healthy": {object: recovered, state: Ready},
		"the reason of the condition comes first": {
			object: instanceWith(served, "", failed), state: Failing, causes: []string{"Site shop/s: Rejected"},
		},
		"a parked instance is not retried": {
			object: parked, state: Failing, causes: []string{"Site shop/s: Rejected", "Site shop/s: Parked"},
		},
		"an event from before the failure does not count": {
			object: parkedBefore, state: Failing, causes: []string{"Site shop/s: Rejected"},
		},
		"an instance without an event about parking is retried": {
			object: retried, state: Failing, causes: []string{"Site shop/s: Rejected"},
		},
		"an event from another controller does not count": {
			object: parkedByOther, state: Failing, causes: []string{"Site shop/s: Rejected"},
		},
		"an instance that waits is not parked": {
			object: parkedWaiting, state: Waiting, causes: []string{"Site shop/s: Waiting"},
		},
		"an instance with a newer generation is not parked": {
			object: parkedOlder, state: Waiting, causes: []string{"Site shop/s: NotReconciled"},
		},
		"a parked Blueprint is not retried": {
			object: parkedBlueprint, state: Failing, causes: []string{"Blueprint sites: Invalid", "Blueprint sites: Parked"},
		},
		"an instance without conditions has not been reconciled": {
			object: instanceWith(served, ""), state: Waiting, causes: []string{"Site shop/s: NotReconciled"},
		},
		"a condition for an older generation does not count": {
			object: instanceWith(served, "", strings.Replace(ready, "observedGeneration: 2", "observedGeneration: 1", 1)),
			state:  Waiting, causes: []string{"Site shop/s: NotReconciled"},
		},
		"a pause comes before a failure": {
			object: instanceWith(served, paused, failed), state: Paused,
			causes: []string{"Site shop/s: InstancePaused", "Site shop/s: Rejected"},
		},
		"the Blueprint pauses its instances": {
			object: instanceWith(blueprintWith(paused), "", ready), state: Paused,
			causes: []string{"Site shop/s: BlueprintPaused"},
		},
		"a Blueprint that serves nothing comes before the instance": {
			object: instanceWith(notAccepted, ""), state: Waiting,
			causes: []string{"Blueprint sites: Invalid", "Site shop/s: NotReconciled"},
		},
		"a Blueprint that serves an older generation is a note": {
			object: instanceWith(rejectedLater, "", ready), state: Ready, notes: []string{"Blueprint sites: Invalid"},
		},
		"nothing reconciles an instance without a Blueprint": {
			object: instanceWith(nil, "", ready), state: Ready, causes: []string{"Site shop/s: BlueprintNotFound"},
		},
		"a rejected Blueprint has one cause": {
			object: &Object{Unstructured: notAccepted}, state: Failing, causes: []string{"Blueprint sites: Invalid"},
		},
		"a stopped rollout": {
			object: &Object{Unstructured: blueprintWith("", condition("Accepted", "True", "Compiled", ""),
				condition("TypeEstablished", "True", "Established", ""), condition("Serving", "True", "Serving", ""),
				condition("Progressing", "False", "RolloutStopped", "failing since the update: shop/s"))},
			state: Failing, causes: []string{"Blueprint sites: RolloutStopped"},
		},
		"an accepted generation that is not served": {
			object: &Object{Unstructured: notStored}, state: Failing, causes: []string{"Blueprint sites: RevisionNotStored"},
		},
		"a generation that is not served without a message": {
			object: &Object{Unstructured: notServed}, state: Failing, causes: []string{"Blueprint sites: RevisionNotStored"},
		},
		"children that cannot be watched": {
			object: &Object{Unstructured: notWatched}, state: Failing, causes: []string{"Blueprint sites: ChildrenNotWatched"},
		},
		"a generation that is not served is a note of instances": {
			object: instanceWith(notStored, "", ready), state: Ready, notes: []string{"Blueprint sites: RevisionNotStored"},
		},
		"failing instances come first, after the numbers": {
			object: (&Object{Unstructured: counted}).with(instanceWith(served, "", waiting), instanceWith(served, "", failed)),
			state:  Ready,
			notes:  []string{"Blueprint sites: InstancesNotReady", "Site shop/s: Failing", "Site shop/s: Waiting"},
		},
		"a failing instance is a note of its Blueprint": {
			object: (&Object{Unstructured: served}).with(instanceWith(served, "", failed), instanceWith(served, "", ready)),
			state:  Ready, notes: []string{"Site shop/s: Failing"},
		},
		"a waiting child comes after what the instance waits for": {
			object: instanceWith(served, "", waiting).
				with(child(pvc, "b", stage1, unbound), child("ConfigMap", "a", stage0, "")),
			state: Waiting, causes: []string{"Site shop/s: Waiting", pvc + " shop/b: ChildNotReady"},
		},
		"a failing child comes before what the instance waits for": {
			object: instanceWith(served, "", waiting).with(child("Pod", "a", stage0, ", status: {phase: Failed}")),
			state:  Waiting, causes: []string{"Pod shop/a: ChildNotReady", "Site shop/s: Waiting"},
		},
		"a child that readyWhen ignores is a note": {
			object: instanceWith(served, "", ready).with(child(pvc, "b", stage1, unbound)), state: Ready,
			notes: []string{pvc + " shop/b: ChildNotReady"},
		},
		"a nested instance comes before the instance that waits for it": {
			object: instanceWith(served, "", waiting).with(instanceWith(served, stage0, failed)), state: Waiting,
			causes: []string{"Site shop/s: Rejected", "Site shop/s: Waiting"},
		},
		"a child that blocks the deletion": {
			object: instanceWith(served, ownHeld, condition("Ready", "False", "Deleting", "a: waiting for ConfigMap")).
				with(child("ConfigMap", "a", strings.Replace(held, ", ", stage0+", ", 1), "")),
			state: Deleting, causes: []string{"ConfigMap shop/a: BlockedByFinalizer", "Site shop/s: Deleting"},
		},
		"a finalizer of another controller on the instance": {
			object: instanceWith(served, held, ready), state: Deleting, causes: []string{"Site shop/s: BlockedByFinalizer"},
		},
		"a deletion that has just begun": {
			object: instanceWith(served, ownHeld, ready), state: Deleting, causes: []string{"Site shop/s: Deleting"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Explain(test.object, now)
			if got.State != test.state || got.Healthy != (test.causes == nil) ||
				!equal(got.Causes, test.causes) || !equal(got.Notes, test.notes) {
				t.Errorf("got %s, healthy %t, the causes %+v, and the notes %+v", got.State, got.Healthy, got.Causes, got.Notes)
			}
			for _, f := range append(got.Causes, got.Notes...) {
				if f.Action == "" {
					t.Errorf("%s: no action", f.Reason)
				}
			}
		})
	}
}

func equal(findings []Finding, want []string) bool {
	if len(findings) != len(want) {
		return false
	}
	for i, f := range findings {
		if f.Object+": "+f.Reason != want[i] {
			return false
		}
	}
	return true
}

func TestTree_OrdersChildrenByStage(t *testing.T) {
	served := withReadyWhen("a.data.x == 'x'")
	root := instanceWith(served, "", waiting).with(
		child(pvc, "late", stage1, unbound), child("ConfigMap", "first", stage0, ""), instanceWith(served, stage1, ready))
	root.Unread = []string{"secrets in namespace shop: forbidden"}
	tree := Tree(root, now)
	var b strings.Builder
	tree.Print(&b)
	want := `NAME                                 STATE     RESOURCE   STAGE   AGE    MESSAGE
Site shop/s                          Waiting   -          -       4m5s   Waiting: a: waiting for readyWhen "x"
├─ ConfigMap shop/first              Waiting   a          0       4m5s   waiting for readyWhen "a.data.x == 'x'": ` +
		`a.data does not exist
├─ PersistentVolumeClaim shop/late   Waiting   b          1       4m5s   waiting for the claim to be bound
├─ Site shop/s                       Ready     b          1       4m5s   all 2 resources are ready
└─ secrets in namespace shop: forbidden
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
	if tree.IsHealthy() || !Tree(instanceWith(served, "", ready), now).IsHealthy() {
		t.Error("the tree is healthy if all objects are ready")
	}
}

// A resource with readyWhen can be ready although its object does not have the default readiness of its kind.
func TestTree_InstanceDecidesWhetherChildrenAreReady(t *testing.T) {
	served := blueprintWith("")
	for _, isReady := range []bool{true, false} {
		status := waiting
		if isReady {
			status = ready
		}
		tree := Tree(instanceWith(served, "", status).with(child(pvc, "claim", stage1, unbound)), now)
		if got := tree.Children[0]; (got.State == Ready) != isReady || got.Message == "" {
			t.Errorf("instance ready: %t, child: %+v", isReady, got)
		}
		if tree.IsHealthy() != isReady {
			t.Errorf("instance ready: %t, healthy: %t", isReady, tree.IsHealthy())
		}
	}
}

// Names, conditions and events can contain text from other users.
func TestPrint_ReplacesControlCharacters(t *testing.T) {
	object := instanceWith(blueprintWith(""), "", condition("Ready", "False", "Rejected", "one\ntwo"))
	object.SetName("s\x1b[2J")
	object.Events = []eventsv1.Event{event("Failed", "a\x1b]0;title\x07\nb\u202e", time.Minute)}
	var b strings.Builder
	report := Explain(object, now)
	report.Causes[0].Message = "one\u009b2J\ntwo"
	report.Conditions[0].Type, report.Conditions[0].Status = "Rea\x1bc\ndy", "Fal\x07\tse"
	report.Print(&b, true)
	for _, r := range b.String() {
		if r != '\n' && (r < ' ' || r == '\u009b' || r == '\u202e' || r == 0x7f) {
			t.Fatalf("got %q", b.String())
		}
	}
	first, rest, _ := strings.Cut(b.String(), "\n")
	if first != "Site shop/s?[2J is Failing: Rejected: one?2J" || !strings.HasPrefix(rest, "    two\n  -> fix the spec") {
		t.Errorf("got %s", b.String())
	}
	if !strings.Contains(b.String(), "\n  Rea?c dy   Fal? se   Rejected   one two\n") {
		t.Errorf("got %s", b.String())
	}
	b.Reset()
	tree := Tree(object, now)
	tree.Unread = []string{"pods: \x1b]0;title\x07\nx"}
	tree.Print(&b)
	if lines := strings.Split(b.String(), "\n"); len(lines) != 4 ||
		!strings.HasPrefix(lines[1], "Site shop/s?[2J   Failing ") || lines[2] != "└─ pods: ?]0;title? x" {
		t.Errorf("got %q", b.String())
	}
}

func TestEventsOf_ReturnsTheNewest(t *testing.T) {
	object := instanceWith(blueprintWith(""), "", failed)
	for i := range 9 {
		object.Events = append(object.Events, event("Failed", string(rune('a'+i)), time.Duration(9-i)*time.Minute))
	}
	pod := child("Pod", "p", stage0, "")
	pod.Events = []eventsv1.Event{event("BackOff", "late", time.Second)}
	got := Explain(object.with(pod), now).Events
	if len(got) != maxEvents+1 || got[0].Note != "e" || got[0].Age != "5m" || got[maxEvents].Object != "Pod shop/p" {
		t.Errorf("got %+v", got)
	}
}

// The commands why and tree show the same children, even if only readyWhen is not fulfilled.
func TestTree_HasTheChildrenOfTheReport(t *testing.T) {
	stale := strings.Replace(waiting, "observedGeneration: 2", "observedGeneration: 1", 1)
	for name, test := range map[string]struct {
		condition string
		want      State
	}{
		"readyWhen": {waiting, Waiting}, "readyWhen before the newest generation": {stale, Waiting}, "ready": {ready, Ready},
	} {
		object := instanceWith(withReadyWhen("a.data.x == 'x'"), "", test.condition).with(
			child("ConfigMap", "a", stage0, ""))
		why, tree := Explain(object, now).Children, Tree(object, now).Children
		if why[0].State != test.want || tree[0].State != test.want || why[0].Message != tree[0].Message {
			t.Errorf("%s: got %+v and %+v", name, why[0], tree[0])
		}
	}
}

func TestShorten(t *testing.T) {
	b := &Object{Unstructured: blueprintWith("")}
	for i := range maxShown + 2 {
		instance := instanceWith(nil, "", failed)
		instance.SetName(fmt.Sprint("s", i))
		b.Children = append(b.Children, instance)
	}
	b.Children = append(b.Children, instanceWith(nil, "", ready))
	report, tree := Explain(b, now), Tree(b, now)
	report.Shorten()
	tree.Shorten()
	last := report.Notes[len(report.Notes)-1]
	if len(report.Children) != maxShown || len(report.Notes) != maxShown+1 ||
		last.Message != "and 2 more findings, and 2 more children that are not ready" {
		t.Errorf("got %d children, and the last note %+v", len(report.Children), last)
	}
	if len(tree.Children) != maxShown || len(tree.Unread) != 1 ||
		!strings.HasPrefix(tree.Unread[0], "and 3 more, 2 of them not ready: ") {
		t.Errorf("got %d children, and %q", len(tree.Children), tree.Unread)
	}
	few := Explain(instanceWith(nil, "", failed), now)
	causes := len(few.Causes)
	if few.Shorten(); len(few.Causes) != causes || len(few.Notes) != 0 {
		t.Errorf("a short report has changed: %+v", few)
	}
}

func TestExplain_ListsUnreadOnce(t *testing.T) {
	object, pod := instanceWith(blueprintWith(""), "", ready), child("Pod", "p", stage0, "")
	object.Unread, pod.Unread = []string{"events: forbidden"}, []string{"events: forbidden", "pods: forbidden"}
	if got := Explain(object.with(pod), now).Unread; len(got) != len(pod.Unread) {
		t.Errorf("got %q", got)
	}
}

func TestExplain_ReportsWhyAGenerationIsNotServed(t *testing.T) {
	const message = "generation 2 is accepted but not served: no"
	b := blueprintWith("", condition("Accepted", "True", "Compiled", ""),
		condition("TypeEstablished", "True", "Established", ""),
		condition("Serving", "True", "Serving", "generation 1 is served; "+message))
	if got := Explain(&Object{Unstructured: b}, now).Causes; len(got) != 1 || got[0].Message != message {
		t.Errorf("got %+v", got)
	}
}

// A line of a message cannot be mistaken for the action.
func TestPrint_OnlyTheActionHasAnArrow(t *testing.T) {
	var out strings.Builder
	r := &Report{Object: "Site shop/s", State: Failing, Causes: []Finding{
		{Object: "Site shop/s", Reason: "Rejected", Message: "no\n-> evil\n\t -> evil\nx -> y", Action: "fix it"},
	}}
	r.Print(&out, false)
	const want = "Site shop/s is Failing: Rejected: no\n    | -> evil\n    \t | -> evil\n    x -> y\n  -> fix it\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
