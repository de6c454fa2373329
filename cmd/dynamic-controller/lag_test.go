package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

var (
	laggingUpdates  = flag.Int("lagging-updates", 60, "number of updates in TestLag_NothingIsComputedFromOldChildren")
	laggingRollouts = flag.Int("lagging-rollouts", 1, "number of rollouts in TestLag_RolloutOfABrokenImageStops")
)

// randomLag delays the events of each watch by a random time.
func randomLag(apiproxy.Call) time.Duration { return rand.N(700 * time.Millisecond) }

// pairs has children whose values and names depend on another child, a Deployment, and an instance of another
// Blueprint.
const pairs = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: pairs.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Pair
    schema: {type: object, properties: {spec: {type: object, properties: {num: {type: integer}}}}}
    status: {seen: "${first.data.t}"}
  resources:
    - id: first
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-first"}
        data: {t: "${string(self.spec.num)}"}
    - id: second
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-second"}
        data: {t: "${first.data.t}"}
    - id: named
      forEach: [{t: "${[first.data.t]}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-named-${t}"}
        data: {t: "${t}"}
    - id: web
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: "${self.metadata.name}"}
        spec:
          replicas: 1
          selector: {matchLabels: {app: "${self.metadata.name}"}}
          template:
            metadata: {labels: {app: "${self.metadata.name}"}}
            spec: {containers: [{name: main, image: "good:${string(self.spec.num)}"}]}
    - id: inner
      template:
        apiVersion: GROUP/v1
        kind: Inner
        metadata: {name: "${self.metadata.name}"}
        spec: {num: "${self.spec.num}"}
`

const inners = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: inners.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Inner
    schema: {type: object, properties: {spec: {type: object, properties: {num: {type: integer}}}}}
  resources:
    - id: inside
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-inside"}
        data: {t: "${string(self.spec.num)}"}
`

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// watched calls f for the events of a type in the namespace of the test, without a delay.
func (a *api) watched(gvr schema.GroupVersionResource, f func(watch.EventType, *unstructured.Unstructured)) {
	a.Helper()
	events, err := a.dynamic.Resource(gvr).Namespace(a.namespace).Watch(a.Context(), metav1.ListOptions{})
	if err != nil {
		a.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range events.ResultChan() {
			if object, is := event.Object.(*unstructured.Unstructured); is {
				f(event.Type, object)
			}
		}
	}()
	a.Cleanup(func() {
		events.Stop()
		<-done
	})
}

// startDeployments does what the Deployment controller does: it makes the replicas of images named good available. It
// never does so for others.
func (a *api) startDeployments() {
	a.Helper()
	a.watched(deployments, func(event watch.EventType, d *unstructured.Unstructured) {
		generation := d.GetGeneration()
		observed, _, _ := unstructured.NestedInt64(d.Object, "status", "observedGeneration")
		if event == watch.Deleted || observed == generation {
			return
		}
		available := 0
		if strings.HasPrefix(imageOf(d), "good:") {
			available = 1
		}
		patch := fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":1,"updatedReplicas":1,"readyReplicas":%d,`+
			`"availableReplicas":%[2]d}}`, generation, available)
		_, err := a.dynamic.Resource(deployments).Namespace(a.namespace).Patch(a.Context(), d.GetName(),
			types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil && a.Context().Err() == nil {
			a.Error(err)
		}
	})
}

func imageOf(deployment *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	for _, container := range list {
		image, _ := container.(map[string]any)["image"].(string)
		return image
	}
	return ""
}

// history collects the versions of objects of several types.
type history struct {
	mu     sync.Mutex // guards events
	events []watch.Event
}

func (h *history) add(event watch.EventType, object *unstructured.Unstructured) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, watch.Event{Type: event, Object: object})
}

func (h *history) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.events)
}

// replay returns what is wrong with the history, and the number of statuses that report Ready.
func (h *history) replay() (problems []string, ready int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	version := func(e watch.Event) int64 {
		n, _ := strconv.ParseInt(e.Object.(*unstructured.Unstructured).GetResourceVersion(), 10, 64)
		return n
	}
	slices.SortStableFunc(h.events, func(a, b watch.Event) int { return cmp.Compare(version(a), version(b)) })
	now := map[string]*unstructured.Unstructured{} // by kind and name
	newest := map[string]int64{}                   // the largest number of a named child, by instance
	created := map[string]bool{}
	for _, e := range h.events {
		object := e.Object.(*unstructured.Unstructured)
		key := object.GetKind() + " " + object.GetName()
		before := now[key]
		owner, number, isNamed := strings.Cut(object.GetName(), "-named-")
		n, _ := strconv.ParseInt(number, 10, 64)
		switch {
		case isNamed && e.Type == watch.Added:
			if created[key] || n < newest[owner] {
				problems = append(problems, fmt.Sprintf("%s was created after %d", key, newest[owner]))
			}
			created[key], newest[owner] = true, n
		case isNamed && e.Type == watch.Deleted && n == newest[owner]:
			problems = append(problems, key+" was deleted although it is desired")
		case object.GetKind() == "ConfigMap" && before != nil && numberIn(object) < numberIn(before):
			problems = append(problems, fmt.Sprintf("%s went from %d back to %d", key, numberIn(before), numberIn(object)))
		}
		if now[key] = object; e.Type == watch.Deleted {
			delete(now, key)
		}
		if object.GetKind() == "Pair" && is("Ready", "True")(object) == nil {
			ready++
			problems = append(problems, early(object, now)...)
		}
	}
	return problems, ready
}

// numberIn returns the number in a ConfigMap.
func numberIn(configMap *unstructured.Unstructured) (n int64) {
	text, _, _ := unstructured.NestedString(configMap.Object, "data", "t")
	n, _ = strconv.ParseInt(text, 10, 64)
	return n
}

// early returns the reasons why a Pair should not be ready yet.
func early(pair *unstructured.Unstructured, now map[string]*unstructured.Unstructured) (problems []string) {
	n, _, _ := unstructured.NestedInt64(pair.Object, "spec", "num")
	want := strconv.FormatInt(n, 10)
	name := pair.GetName()
	check := func(ok bool, what string) {
		if !ok {
			problems = append(problems, fmt.Sprintf("%s is ready for %d before %s", name, n, what))
		}
	}
	seen, _, _ := unstructured.NestedString(pair.Object, "status", "seen")
	check(seen == want, "its status, which has seen "+seen)
	for _, child := range []string{"-second", "-inside", "-named-" + want} {
		object := now["ConfigMap "+name+child]
		check(object != nil && numberIn(object) == n, name+child)
	}
	web := now["Deployment "+name]
	check(web != nil && imageOf(web) == "good:"+want, "its Deployment")
	if web != nil {
		observed, _, _ := unstructured.NestedInt64(web.Object, "status", "observedGeneration")
		check(observed == web.GetGeneration(), "the status of its Deployment")
	}
	inner := now["Inner "+name]
	check(inner != nil && is("Ready", "True")(inner) == nil, "its Inner")
	return problems
}

// All watches of the platform lag by a random time. Even then, no value of a child that depends on another child goes
// back, no desired child is deleted, and no instance is ready before its children have observed their generations.
func TestLag_NothingIsComputedFromOldChildren(t *testing.T) {
	a := newAPI(t)
	kubeconfig, _ := a.proxied(apiproxy.DelayWatches(randomLag))
	startServing(t, kubeconfig)
	a.startDeployments()
	a.apply(inners)
	a.waitBlueprint("inners", is("Serving", "True"))
	a.apply(pairs)
	a.waitBlueprint("pairs", is("Serving", "True"))
	instances := min(max(*laggingUpdates/200, 5), 25)
	pair := func(i, n int) string {
		return fmt.Sprintf("{apiVersion: GROUP/v1, kind: Pair, metadata: {name: p%d}, spec: {num: %d}}", i, n)
	}
	for i := range instances {
		a.apply(pair(i, 0))
	}
	for i := range instances {
		a.wait("GROUP/v1", "Pair", fmt.Sprintf("p%d", i), is("Ready", "True"))
	}
	h := &history{}
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"}, deployments,
		{Group: a.group, Version: "v1", Resource: "pairs"}, {Group: a.group, Version: "v1", Resource: "inners"},
	} {
		a.watched(gvr, h.add)
	}
	updates := max(*laggingUpdates/instances, 1)
	var updating sync.WaitGroup
	for i := range instances {
		updating.Go(func() {
			for n := range updates {
				if _, err := a.tryApply(pair(i, n+1)); err != nil {
					t.Error(err)
					return
				}
				if n%3 == 2 {
					a.waitReady(fmt.Sprintf("p%d", i), time.Minute)
				}
				time.Sleep(rand.N(900 * time.Millisecond)) // so that the updates meet caches of any age
			}
		})
	}
	updating.Wait()
	for i := range instances {
		a.wait("GROUP/v1", "Pair", fmt.Sprintf("p%d", i),
			all(is("Ready", "True"), has(fmt.Sprint(updates), "status", "seen")))
	}
	waitUntilQuiet(t, h.size) // the watches of the test have received everything
	problems, ready := h.replay()
	if len(problems) > 0 {
		t.Errorf("%d problems, for example:\n%s", len(problems), strings.Join(problems[:min(len(problems), 10)], "\n"))
	}
	if ready < instances*updates/3 {
		t.Errorf("got only %d statuses with Ready", ready)
	}
	t.Logf("%d updates of %d instances: %d statuses with Ready, %d events", updates, instances, ready, h.size())
}

// waitReady waits until a Pair is ready for its generation. Unlike wait, it can be called by any goroutine.
func (a *api) waitReady(name string, limit time.Duration) {
	ctx, cancel := context.WithTimeout(a.Context(), limit)
	defer cancel()
	err := testkit.Poll(ctx, func(context.Context) error {
		pair, err := a.get("GROUP/v1", "Pair", name)
		if err != nil {
			return err
		}
		return is("Ready", "True")(pair)
	})
	if err != nil {
		a.Errorf("%s is not ready: %v", name, err)
	}
}

const apps = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: apps.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: App
    schema: {type: object, properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: config
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}"}
        data: {image: "IMAGE"}
    - id: web
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: "${self.metadata.name}"}
        spec:
          replicas: 1
          selector: {matchLabels: {app: "${self.metadata.name}"}}
          template:
            metadata: {labels: {app: "${self.metadata.name}"}}
            spec: {containers: [{name: main, image: "IMAGE"}]}
`

// A Blueprint gets an image that never starts, while all watches lag and users touch the instances. The rollout must
// not go beyond the first instance.
func TestLag_RolloutOfABrokenImageStops(t *testing.T) {
	a := newAPI(t)
	kubeconfig, _ := a.proxied(apiproxy.DelayWatches(randomLag))
	startServing(t, kubeconfig)
	a.startDeployments()
	const instances = 8
	app := func(i int, touched string) string {
		return fmt.Sprintf("{apiVersion: GROUP/v1, kind: App, metadata: {name: a%d, annotations: {touched: %q}}, spec: {}}",
			i, touched)
	}
	images := func() (n map[string]int) {
		list, err := a.dynamic.Resource(deployments).Namespace(a.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n = map[string]int{}
		for i := range list.Items {
			n[imageOf(&list.Items[i])]++
		}
		return n
	}
	a.apply(strings.ReplaceAll(apps, "IMAGE", "good:0"))
	a.waitBlueprint("apps", is("Serving", "True"))
	for i := range instances {
		a.apply(app(i, ""))
	}
	for run := range *laggingRollouts {
		good, broken := fmt.Sprintf("good:%d", run), fmt.Sprintf("broken:%d", run)
		a.apply(strings.ReplaceAll(apps, "IMAGE", good))
		eventually(t, func() error {
			if n := images(); n[good] != instances {
				return fmt.Errorf("got images %v, want %s", n, good)
			}
			return nil
		})
		for i := range instances {
			a.wait("GROUP/v1", "App", fmt.Sprintf("a%d", i), is("Ready", "True"))
		}
		a.waitBlueprint("apps", is("Progressing", "True", "RolloutComplete"))

		a.apply(strings.ReplaceAll(apps, "IMAGE", broken))
		waiting := is("Progressing", "True", "RollingOut", "1 of 8 instances are updated; not ready since the update")
		touch := func(n int) {
			for i := range instances {
				a.apply(app(i, fmt.Sprintf("%s-%d", broken, n)))
			}
		}
		touched := 0
		eventually(t, func() error {
			touched++
			touch(touched)
			b, err := a.get(blueprintVersion, "Blueprint", "apps."+a.group)
			if err == nil {
				err = waiting(b)
			}
			return err
		})
		for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until); touched++ {
			touch(touched) // until all watches have delivered what was written before
		}
		if n := images(); n[broken] != 1 {
			t.Fatalf("run %d: got images %v, want 1 with %s", run, n, broken)
		}
		a.waitBlueprint("apps", waiting)
	}
}
