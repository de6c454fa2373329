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
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func TestServingCondition(t *testing.T) {
	const quick, slow = 100 * time.Millisecond, 2 * time.Second
	running := &servedRevision{Revision: instances.Revision{GVR: websites, Compiled: &blueprint.Compiled{}}, generation: 3}
	refused := validation{rejection: &rejection{reasonInvalid, "x"}}
	servedSince := func(since time.Time, state dynamiccontroller.TypeState,
		secondaries ...dynamiccontroller.SecondaryStatus) []dynamiccontroller.TypeStatus {
		return []dynamiccontroller.TypeStatus{
			{
				GVR:         blueprints,
				WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeForbidden, Message: "other type"},
			},
			{
				GVR:         websites,
				WatchStatus: dynamiccontroller.WatchStatus{State: state, Since: since, Message: "the server's message"},
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
		"no accepted generation": {
			decided: decision{validation: refused},
			reason:  reasonNotAccepted,
			message: "no generation has been accepted",
		},
		"no CustomResourceDefinition": {
			decided: decision{},
			reason:  reasonNoDefinition,
			message: "waiting for the CustomResourceDefinition to be created",
		},
		"clean-up only": {
			decided:  decision{running: cleaningUp},
			statuses: served(dynamiccontroller.TypeSynced),
			reason:   reasonNotAccepted,
			message:  "only deletions are processed",
		},
		"type not served yet": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeSynced)[:1],
			reason:   reasonSyncing,
			message:  "the type is not served yet",
			again:    quick,
		},
		"cache syncing": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeSyncing),
			reason:   reasonSyncing,
			message:  "reading the instances",
			again:    quick,
		},
		"cache syncing for a long time": {
			decided:  decision{running: running},
			statuses: servedSince(longAgo, dynamiccontroller.TypeSyncing),
			reason:   reasonSyncingLong,
			message:  "has taken more than a minute",
			again:    slow,
		},
		"synced long ago": {
			decided:  decision{running: running},
			statuses: servedSince(longAgo, dynamiccontroller.TypeSynced),
			serving:  true,
			reason:   reasonServing,
			message:  "generation 3 is served",
		},
		"watches stopped": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeStopped),
			reason:   reasonSyncing,
			message:  "reading the instances",
			again:    quick,
		},
		"watch forbidden": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeForbidden),
			reason:   string(dynamiccontroller.TypeForbidden),
			message:  "the server's message",
			again:    slow,
		},
		"watch failing": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeFailing),
			reason:   string(dynamiccontroller.TypeFailing),
			message:  "the server's message",
			again:    slow,
		},
		"synced": {
			decided:  decision{running: running},
			statuses: served(dynamiccontroller.TypeSynced),
			serving:  true,
			reason:   reasonServing,
			message:  "generation 3 is served",
		},
		"earlier generation synced": {
			decided:  decision{running: running, generation: 4, validation: refused},
			statuses: served(dynamiccontroller.TypeSynced),
			serving:  true,
			reason:   reasonServing,
			message:  "generation 3 is served",
		},
		"children syncing": {decided: decision{running: running}, serving: true, reason: reasonServing,
			message: "generation 3 is served",
			statuses: served(dynamiccontroller.TypeSynced, secondary("secrets", dynamiccontroller.TypeSyncing),
				secondary("pods", dynamiccontroller.TypeStopped))},
		"watch of children forbidden": {decided: decision{running: running}, serving: true, reason: reasonServing,
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
				t.Errorf("got %+v, next update after %s", got, again)
			}
		})
	}
}

func TestServingProblems(t *testing.T) {
	failing := dynamiccontroller.SecondaryStatus{
		WatchKey:    dynamiccontroller.WatchKey{GVR: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}},
		WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeForbidden, Message: "not yours; ask"},
	}
	const watch = "secrets.v1 cannot be watched: not yours; ask"
	const store = "generation 2 is accepted but not served: store: no; retry"
	for name, test := range map[string]struct {
		secondaries         []dynamiccontroller.SecondaryStatus
		storeErr            error
		unwatched, unserved string
	}{
		"no problem":    {},
		"a watch fails": {secondaries: []dynamiccontroller.SecondaryStatus{failing}, unwatched: watch},
		"a store fails": {storeErr: errors.New("store: no; retry"), unserved: store},
		"both fail":     {[]dynamiccontroller.SecondaryStatus{failing}, errors.New("store: no; retry"), watch, store},
	} {
		d := decision{generation: 2, running: &servedRevision{generation: 1}}
		c, _ := synced(d, dynamiccontroller.TypeStatus{Secondaries: test.secondaries})
		if test.storeErr != nil {
			c = notStored(d, c, test.storeErr)
		}
		c.ObservedGeneration = 2
		if unwatched, unserved := ServingProblems(&c); unwatched != test.unwatched || unserved != test.unserved {
			t.Errorf("%s: got %q, %q", name, unwatched, unserved)
		}
	}
}

func TestConditions(t *testing.T) {
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
	refused := validation{refusal: &rejection{reasonServerRejected, "frozen"}}
	going := crd(establishedNow)
	going[0].DeletionTimestamp = &metav1.Time{Time: deletedAt}
	for name, test := range map[string]struct {
		decided               decision
		crds                  []*apiextensionsv1.CustomResourceDefinition
		accepted, established string
	}{
		"accepted, type established": {
			decision{}, crd(establishedNow), "True Compiled: each instance creates up to 1 object",
			"True Established: the API server serves websites.shop.example.com",
		},
		"accepted, type missing": {
			decision{}, nil, "True Compiled: each instance creates up to 1 object",
			"False NotDefined: the CustomResourceDefinition websites.shop.example.com does not exist",
		},
		"type not established": {
			decision{}, crd(), "True Compiled: each instance creates up to 1 object",
			"False Installing: the API server has not established the type yet",
		},
		"names of the type taken": {
			decision{}, crd(taken), "True Compiled: each instance creates up to 1 object",
			"False NamesNotAccepted: website is taken",
		},
		"new names of an established type taken": {
			decision{}, crd(establishedNow, taken), "True Compiled: each instance creates up to 1 object",
			"False NamesNotAccepted: website is taken",
		},
		"type refused, earlier type established": {
			decision{validation: refused}, crd(establishedNow), "False RejectedByServer: frozen",
			"True Established: the API server serves websites.shop.example.com",
		},
		"type refused, type missing": {
			decision{validation: refused}, nil, "False RejectedByServer: frozen", "False RejectedByServer: frozen",
		},
		"type terminating": {
			decision{}, going, "True Compiled: each instance creates up to 1 object",
			"False Terminating: the CustomResourceDefinition is being deleted",
		},
		"rejected, type established": {
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
		t.Errorf("with metadata instead of CustomResourceDefinitions in the cache: %v", err)
	}
}

// While its caches are syncing, a new process does not reset the Serving condition.
func TestKeepWhileSyncing(t *testing.T) {
	syncing := falseCondition(blueprint.Serving, reasonSyncing, "reading the instances")
	syncingLong := falseCondition(blueprint.Serving, reasonSyncingLong, "syncing has taken more than a minute")
	served := metav1.Condition{Type: blueprint.Serving, Status: metav1.ConditionTrue, Reason: reasonServing,
		Message: "generation 2 is served"}
	notServed := falseCondition(blueprint.Serving, reasonNotAccepted, "no generation has been accepted")
	for name, c := range map[string]struct {
		said       *metav1.Condition
		generation int64 // observed by the condition; that of the object is 2
		now, want  metav1.Condition
	}{
		"served before":                    {&served, 2, syncing, served},
		"another generation served before": {&served, 1, syncing, syncing},
		"not served before":                {&notServed, 2, syncing, syncing},
		"no condition":                     {nil, 2, syncing, syncing},
		"served before, now rejected":      {&served, 2, notServed, notServed},
		"syncing takes too long":           {&served, 2, syncingLong, syncingLong},
		"synced":                           {&notServed, 2, served, served},
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
