package acceptance

import (
	"errors"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestWhatIsSaidOfServing(t *testing.T) {
	const quick, slow = 100 * time.Millisecond, 2 * time.Second
	running := &servedRevision{Revision: instances.Revision{GVR: websites, Compiled: &blueprint.Compiled{}}, generation: 3}
	refused := validation{rejection: &rejection{reasonInvalid, "x"}}
	servedSince := func(since time.Time, state dynamiccontroller.TypeState,
		secondaries ...dynamiccontroller.SecondaryStatus) []dynamiccontroller.TypeStatus {
		return []dynamiccontroller.TypeStatus{
			{
				GVR:         blueprints,
				WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeForbidden, Message: "of another type"},
			},
			{
				GVR:         websites,
				WatchStatus: dynamiccontroller.WatchStatus{State: state, Since: since, Message: "in the server's words"},
				Secondaries: secondaries,
			},
		}
	}
	served := func(state dynamiccontroller.TypeState,
		secondaries ...dynamiccontroller.SecondaryStatus) []dynamiccontroller.TypeStatus {
		return servedSince(time.Now(), state, secondaries...)
	}
	longAgo := time.Now().Add(-2 * time.Minute)
	secondary := func(name string, state dynamiccontroller.TypeState) dynamiccontroller.SecondaryStatus {
		return dynamiccontroller.SecondaryStatus{
			WatchKey:    dynamiccontroller.WatchKey{GVR: schema.GroupVersionResource{Version: "v1", Resource: name}},
			WatchStatus: dynamiccontroller.WatchStatus{State: state, Message: "not yours"}}
	}
	for name, test := range map[string]struct {
		decided  decision
		statuses []dynamiccontroller.TypeStatus
		serving  bool
		reason   string
		message  string
		again    time.Duration
	}{
		"nothing is accepted": {
			decided: decision{validation: refused},
			reason:  reasonNotAccepted,
			message: "no generation has been accepted",
		},
		"there is no type yet": {decided: decision{}, reason: reasonNoDefinition, message: "waiting for the type"},
		"only deletions are processed": {
			decided:  decision{running: cleaningUp},
			statuses: served(dynamiccontroller.TypeSynced),
			reason:   reasonNotAccepted,
			message:  "only deletions are processed",
		},
		"the engine has yet to begin": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeSynced)[:1],
			reason:   reasonSyncing,
			message:  "the type is not served yet",
			again:    quick,
		},
		"the cache fills": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeSyncing),
			reason:   reasonSyncing,
			message:  "reading the instances",
			again:    quick,
		},
		"the cache fills for long": {
			decided:  decision{running: running},
			statuses: servedSince(longAgo, dynamiccontroller.TypeSyncing),
			reason:   reasonSyncingLong,
			message:  "takes more than a minute",
			again:    slow,
		},
		"all has long been there": {
			decided:  decision{running: running},
			statuses: servedSince(longAgo, dynamiccontroller.TypeSynced),
			serving:  true,
			reason:   reasonServing,
			message:  "generation 3 is served",
		},
		"the watches are stopped": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeStopped),
			reason:   reasonSyncing,
			message:  "reading the instances",
			again:    quick,
		},
		"the cache may not be filled": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeForbidden),
			reason:   string(dynamiccontroller.TypeForbidden),
			message:  "in the server's words",
			again:    slow,
		},
		"the cache cannot be filled": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeFailing),
			reason:   string(dynamiccontroller.TypeFailing),
			message:  "in the server's words",
			again:    slow,
		},
		"all is there": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeSynced),
			serving:  true,
			reason:   reasonServing,
			message:  "generation 3 is served",
		},
		"all is there of an earlier": {
			decided:  decision{running: running, generation: 4, validation: refused},
			statuses: served(dynamiccontroller.TypeSynced),
			serving:  true,
			reason:   reasonServing,
			message:  "generation 3 is served",
		},
		"children are being read": {decided: decision{running: running}, serving: true, reason: reasonServing,
			message: "generation 3 is served",
			statuses: served(dynamiccontroller.TypeSynced, secondary("secrets", dynamiccontroller.TypeSyncing),
				secondary("pods", dynamiccontroller.TypeStopped))},
		"children may not be read": {decided: decision{running: running}, serving: true, reason: reasonServing,
			message: "generation 3 is served; secrets.v1 cannot be watched: not yours", again: slow,
			statuses: served(dynamiccontroller.TypeSynced, secondary("pods", dynamiccontroller.TypeSynced),
				secondary("secrets", dynamiccontroller.TypeForbidden))},
	} {
		t.Run(name, func(t *testing.T) {
			engine := platformtest.NewEngine()
			engine.Statuses = test.statuses
			got, again := (&statusReporter{engine: engine}).serving(test.decided)
			if (got.Status == metav1.ConditionTrue) != test.serving || got.Reason != test.reason ||
				!strings.HasSuffix(got.Message, test.message) || again != test.again {
				t.Errorf("got %+v, and again after %s", got, again)
			}
		})
	}
}

func TestHowABlueprintStands(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID = "websites", "u"
	type crds = []*apiextensionsv1.CustomResourceDefinition
	crd := func(conditions ...apiextensionsv1.CustomResourceDefinitionCondition) crds {
		crd := madeFor(t, b, "u")
		crd.Status.Conditions = conditions
		return []*apiextensionsv1.CustomResourceDefinition{crd}
	}
	establishedNow := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Established,
		Status: apiextensionsv1.ConditionTrue}
	taken := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.NamesAccepted,
		Status: apiextensionsv1.ConditionFalse, Message: "website is taken"}
	going := crd(establishedNow)
	going[0].DeletionTimestamp = &metav1.Time{Time: deletedAt}
	for name, test := range map[string]struct {
		decided               decision
		crds                  []*apiextensionsv1.CustomResourceDefinition
		accepted, established string
	}{
		"accepted, with its type": {
			decision{}, crd(establishedNow), "True Compiled: each instance creates up to 1 object",
			"True Established: the API server serves websites.shop.example.com",
		},
		"accepted, before its type": {
			decision{}, nil, "True Compiled: each instance creates up to 1 object",
			"False NotDefined: the CustomResourceDefinition websites.shop.example.com does not exist",
		},
		"its type has yet to be seen": {
			decision{}, crd(), "True Compiled: each instance creates up to 1 object",
			"False Installing: the API server has not established the type yet",
		},
		"its type's names are taken": {
			decision{}, crd(taken), "True Compiled: each instance creates up to 1 object",
			"False NamesNotAccepted: website is taken",
		},
		"its type is being deleted": {
			decision{}, going, "True Compiled: each instance creates up to 1 object",
			"False Terminating: the CustomResourceDefinition is being deleted",
		},
		"refused, with its type": {
			decision{validation: validation{rejection: &rejection{reasonInvalid, "x"}}}, crd(establishedNow), "False Invalid: x",
			"True Established: the API server serves websites.shop.example.com",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newTestController(nil, test.crds)
			s, err := p.blueprints.status.conditionsFor(b, test.decided)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				got  metav1.Condition
				want string
			}{{s.accepted, test.accepted}, {s.established, test.established}} {
				if got := string(c.got.Status) + " " + c.got.Reason + ": " + c.got.Message; got != c.want {
					t.Errorf("%s is %s, want %s", c.got.Type, got, c.want)
				}
			}
		})
	}
	p, _ := newTestController(nil, nil)
	p.engine.SecondaryErr = dynamiccontroller.ErrNotSynced
	if _, err := p.blueprints.status.conditionsFor(b, decision{}); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
		t.Errorf("without a cache of definitions: %v", err)
	}
}

// A process that begins takes back nothing of what is still so as far as it knows.
func TestABlueprintIsStillServedWhileTheCachesFill(t *testing.T) {
	syncing := falseCondition(blueprint.Serving, reasonSyncing, "reading the instances")
	syncingLong := falseCondition(blueprint.Serving, reasonSyncingLong, "reading the instances takes more than a minute")
	served := metav1.Condition{Type: blueprint.Serving, Status: metav1.ConditionTrue, Reason: reasonServing,
		Message: "generation 2 is served"}
	notServed := falseCondition(blueprint.Serving, reasonNotAccepted, "no generation has been accepted")
	for name, c := range map[string]struct {
		said       *metav1.Condition
		generation int64 // of which it was said; the object's is 2
		now, want  metav1.Condition
	}{
		"it was served":               {&served, 2, syncing, served},
		"another generation was":      {&served, 1, syncing, syncing},
		"it was not":                  {&notServed, 2, syncing, syncing},
		"nothing was said":            {nil, 2, syncing, syncing},
		"the caches cannot be filled": {&served, 2, notServed, notServed},
		"the caches fill for long":    {&served, 2, syncingLong, syncingLong},
		"the caches have been filled": {&notServed, 2, served, served},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": c.generation}}}
		if c.said != nil {
			said := *c.said
			said.ObservedGeneration, said.LastTransitionTime = c.generation, metav1.Now()
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&said)
			if err != nil {
				t.Fatal(err)
			}
			object.Object["status"] = map[string]any{"conditions": []any{content}}
		}
		object.SetGeneration(2)
		got := keepWhileSyncing(object, c.now)
		if got.Status != c.want.Status || got.Reason != c.want.Reason {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
