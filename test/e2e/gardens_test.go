package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/internal/testkit"
)

// gardensBlueprint has two collections, one of a list in the instance and one of existing objects, a resource that an
// existing object excludes, and status fields.
const gardensBlueprint = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: gardens.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Garden
    schema:
      properties:
        spec: {type: object, properties: {plants: {type: array, maxItems: 20, items: {type: string}}}}
    status:
      weather: ${weather.data.text}
      plants: ${plants.map(p, p.metadata.name).join(' ')}
      helpers: ${size(helpers)}
    conditions: [{type: Covered, status: weather.data.cold == 'yes'}]
  resources:
    - id: weather
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: weather}}
    - id: helpers
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {matchLabels: {team: red}}}}
    - id: plants
      forEach: [{plant: "${self.spec.plants}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${plant}"}
        data: {text: "${weather.data.text}"}
    - id: tasks
      forEach: [{helper: "${helpers}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-task-${helper.metadata.name}"}
        data: {text: "${weather.data.text}"}
    - id: cover
      includeWhen: [weather.data.cold == 'yes']
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-cover"}
        data: {text: "${weather.data.text}"}
`

const (
	gardenCount = 3
	helperCount = 3
	weatherName = "weather"
)

// allPlants are the items from which the lists of the gardens are drawn. The list of the first garden does not change.
var allPlants = []string{"ash", "box", "elm", "fir", "ivy", "oak"}

// gardens are the instances of a Blueprint and the existing objects that it refers to. The fields describe the test's
// last changes.
type gardens struct {
	*fleet
	group    string
	plants   [gardenCount][]string
	text     string // Of the weather.
	cold     bool
	helpers  map[string]bool      // The names of the helpers; the value reports whether the helper matches the selector.
	versions map[string]string    // The resourceVersions of the existing objects by name.
	uids     map[string]types.UID // Of the plants of the first garden by name.
	mistakes mistakes
}

func newGardens(f *fleet) *gardens {
	f.Helper()
	g := &gardens{fleet: f, group: f.namespace + ".example.com", text: "sun", helpers: map[string]bool{},
		versions: map[string]string{}, uids: map[string]types.UID{}}
	g.retry(func(ctx context.Context) error {
		_, err := g.apply(ctx, strings.ReplaceAll(gardensBlueprint, "GROUP", g.group))
		return err
	})
	// The names are similar to those of children.
	for _, name := range []string{"garden-0", "garden-0-other", "garden-0-task-other"} {
		g.exists(name, "{}", "{}")
	}
	g.applyWeather()
	for i := range helperCount {
		g.applyHelper(helperName(i), i == 0)
	}
	for i := range gardenCount {
		g.applyGarden(i, allPlants[:3])
	}
	g.settle()
	return g
}

func helperName(i int) string { return fmt.Sprint("helper-", i) }

// startChanges changes objects one after another, until stop is called.
func (g *gardens) startChanges(random *rand.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(g.Context())
	random = rand.New(rand.NewPCG(random.Uint64(), 0)) // The faults use the other source.
	var changing sync.WaitGroup
	changes := 0
	changing.Go(func() {
		const interval = 20 * time.Millisecond
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for ctx.Err() == nil && !g.Failed() {
			g.change(random)
			changes++
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	g.Cleanup(func() {
		cancel()
		changing.Wait()
	})
	return func() {
		cancel()
		changing.Wait()
		g.Logf("%d changes", changes)
	}
}

// change changes one object.
func (g *gardens) change(random *rand.Rand) {
	garden := random.IntN(gardenCount)
	name := gardenName(garden) + "-" + allPlants[random.IntN(len(allPlants))]
	helper := helperName(random.IntN(helperCount))
	switch random.IntN(12) {
	case 0, 1, 2:
		plants := slices.Clone(allPlants)
		random.Shuffle(len(plants), func(i, j int) { plants[i], plants[j] = plants[j], plants[i] })
		if count := random.IntN(len(plants) + 1); garden > 0 {
			g.applyGarden(garden, plants[:count])
		}
	case 3, 4:
		g.text, g.cold = fmt.Sprint("rain ", random.IntN(100)), random.IntN(2) == 0
		g.applyWeather()
	case 5:
		g.remove(weatherName)
	case 6:
		g.applyHelper(helper, random.IntN(2) == 0)
	case 7:
		g.remove(helper)
	case 8:
		if garden > 0 {
			g.remove(name)
		}
	case 9:
		g.spoil(name)
	case 10:
		g.applyTrees()
	case 11:
		g.applyWrong()
	}
}

// settle waits until all objects correspond to the last changes. It then changes existing objects one at a time. Each
// of these changes must cause a reconcile by itself.
func (g *gardens) settle() {
	g.Helper()
	g.applyWeather() // It may have been deleted.
	g.await("the random changes")
	g.text, g.cold = g.text+" and wind", !g.cold
	g.applyWeather()
	g.await("a change to the weather")
	helper := helperName(0)
	g.applyHelper(helper, !g.helpers[helper])
	g.await("a change to a helper")
	g.settleBlueprints()
}

func (g *gardens) await(changes string) {
	g.Helper()
	g.eventually("the children and statuses correspond to "+changes, func() error {
		g.checkProcesses()
		return errors.Join(g.checkObjects(), g.checkStatuses(), g.checkBlueprints())
	})
}

// checkObjects returns an error unless exactly the wanted children exist in addition to the existing objects. It fails
// the test if anything other than the test has written an existing object.
func (g *gardens) checkObjects() error {
	wanted := g.wanted()
	list, err := g.clients.CoreV1().ConfigMaps(g.namespace).List(g.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range list.Items {
		version, isExisting := g.versions[object.Name]
		switch text, isWanted := wanted[object.Name]; {
		case isExisting && object.ResourceVersion != version:
			g.Fatalf("%s was written by %v", object.Name, object.ManagedFields)
		case isExisting:
		case !isWanted:
			errs = append(errs, fmt.Errorf("%s exists", object.Name))
		case object.Data["text"] != text:
			errs = append(errs, fmt.Errorf("%s has the data %v, want %q", object.Name, object.Data, text))
		default:
			g.checkIdentity(&object)
		}
		delete(wanted, object.Name)
	}
	for name := range wanted {
		errs = append(errs, fmt.Errorf("%s does not exist", name))
	}
	return errors.Join(errs...)
}

// checkIdentity checks that the plants of the first garden, which the test neither removes from the list nor
// deletes, are never replaced.
func (g *gardens) checkIdentity(object *corev1.ConfigMap) {
	for _, plant := range g.plants[0] {
		if object.Name != gardenName(0)+"-"+plant {
			continue
		}
		if before, ok := g.uids[object.Name]; ok && object.UID != before {
			g.Fatalf("%s was deleted and created again", object.Name)
		}
		g.uids[object.Name] = object.UID
	}
}

// wanted returns the texts of the wanted children by name.
func (g *gardens) wanted() map[string]string {
	wanted := map[string]string{}
	for i, plants := range g.plants {
		for _, plant := range plants {
			wanted[gardenName(i)+"-"+plant] = g.text
		}
		for helper, isSelected := range g.helpers {
			if isSelected {
				wanted[gardenName(i)+"-task-"+helper] = g.text
			}
		}
		if g.cold {
			wanted[gardenName(i)+"-cover"] = g.text
		}
	}
	return wanted
}

func (g *gardens) checkStatuses() error {
	var errs []error
	for i, plants := range g.plants {
		object, err := g.client.Resource(g.gvr()).Namespace(g.namespace).Get(g.Context(), gardenName(i),
			metav1.GetOptions{})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		names := []string{}
		for _, plant := range plants {
			names = append(names, gardenName(i)+"-"+plant)
		}
		selected := int64(0)
		for isSelected := range maps.Values(g.helpers) {
			if isSelected {
				selected++
			}
		}
		want := map[string]any{"weather": g.text, "plants": strings.Join(names, " "), "helpers": selected,
			"Ready": "True", "Covered": map[bool]string{true: "True", false: "False"}[g.cold]}
		got := statusOf(object)
		for field, value := range want {
			if got[field] != value {
				errs = append(errs, fmt.Errorf("%s of %s is %v, want %v", field, object.GetName(), got[field], value))
			}
		}
	}
	return errors.Join(errs...)
}

// statusOf returns the fields of the status, and the status of each condition observed at the newest generation.
func statusOf(object *unstructured.Unstructured) map[string]any {
	status, _, _ := unstructured.NestedMap(object.Object, "status")
	conditions, _, _ := unstructured.NestedSlice(status, "conditions")
	for _, each := range conditions {
		if c, _ := each.(map[string]any); c["observedGeneration"] == object.GetGeneration() {
			status[fmt.Sprint(c["type"])] = c["status"]
		}
	}
	return status
}

func gardenName(i int) string { return fmt.Sprint("garden-", i) }

func (g *gardens) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: g.group, Version: "v1", Resource: "gardens"}
}

func (g *gardens) applyGarden(i int, plants []string) {
	g.plants[i] = plants
	g.retry(func(ctx context.Context) error {
		_, err := g.apply(ctx, fmt.Sprintf("{apiVersion: %s/v1, kind: Garden, metadata: {name: %s}, spec: {plants: [%s]}}",
			g.group, gardenName(i), strings.Join(plants, ", ")))
		return err
	})
}

func (g *gardens) applyWeather() {
	cold := map[bool]string{true: "yes", false: "no"}[g.cold]
	g.exists(weatherName, "{}", "{text: "+g.text+", cold: '"+cold+"'}")
}

func (g *gardens) applyHelper(name string, isSelected bool) {
	g.helpers[name] = isSelected
	g.exists(name, map[bool]string{true: "{team: red}", false: "{team: blue}"}[isSelected], "{}")
}

// exists applies an existing object and records its resourceVersion.
func (g *gardens) exists(name, labels, data string) {
	g.retry(func(ctx context.Context) error {
		object, err := g.apply(ctx, "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+", labels: "+labels+
			"}, data: "+data+"}")
		if err == nil {
			g.versions[name] = object.GetResourceVersion()
		}
		return err
	})
}

// remove deletes a ConfigMap, which can be a child.
func (g *gardens) remove(name string) {
	delete(g.helpers, name)
	delete(g.versions, name)
	g.retry(func(ctx context.Context) error {
		err := g.clients.CoreV1().ConfigMaps(g.namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// spoil changes the data of a child, if it exists.
func (g *gardens) spoil(name string) {
	g.retry(func(ctx context.Context) error {
		_, err := g.clients.CoreV1().ConfigMaps(g.namespace).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"data":{"text":"weeds"}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func parse(text string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	return object, yaml.Unmarshal([]byte(text), &object.Object)
}

func (g *gardens) apply(ctx context.Context, text string) (*unstructured.Unstructured, error) {
	object, err := parse(text)
	if err != nil {
		return nil, err
	}
	gvrs := map[string]schema.GroupVersionResource{
		"Blueprint": blueprints,
		"ConfigMap": corev1.SchemeGroupVersion.WithResource("configmaps"),
		"Garden":    g.gvr(),
	}
	client := g.client.Resource(gvrs[object.GetKind()])
	options := metav1.ApplyOptions{FieldManager: "test", Force: true}
	if object.GetKind() == "Blueprint" {
		return client.Apply(ctx, object.GetName(), object, options)
	}
	return client.Namespace(g.namespace).Apply(ctx, object.GetName(), object, options)
}

// retry repeats a request until it succeeds. The API server can be unavailable, and the type can be missing at first.
func (g *gardens) retry(request func(context.Context) error) {
	const requestTimeout = 2 * time.Second
	within, cancel := context.WithTimeout(context.WithoutCancel(g.Context()), timeout)
	defer cancel()
	err := testkit.Poll(within, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return request(ctx)
	})
	if err != nil {
		g.Errorf("a request still fails: %v", err)
	}
}
