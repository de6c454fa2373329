package integration

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/handlers/children"
)

var jobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

// recreating reconciles one child with OnImmutableRecreate, and counts deletions and dry runs.
type recreating struct {
	*converging
	gvr       schema.GroupVersionResource
	onceAfter func(method string) // is called once, after the next request with this method for a child

	mu       sync.Mutex // guards requests
	requests map[string]int
}

func newRecreating(t *testing.T, gvr schema.GroupVersionResource, kind string) *recreating {
	r := &recreating{converging: newConverging(t), gvr: gvr, requests: map[string]int{}}
	r.moreKinds = append(r.moreKinds, children.Kind{GroupKind: schema.GroupKind{Group: gvr.Group, Kind: kind}})
	r.restart()
	return r
}

// restart continues with a Reconciler that has an empty cache.
func (r *recreating) restart() {
	r.Helper()
	config := intercepted(r.config, func(request *http.Request, send send) (*http.Response, error) {
		method := request.Method
		if request.URL.Query().Get("dryRun") != "" {
			method = "dry run"
		}
		if r.isForChild(request) {
			r.mu.Lock()
			r.requests[method]++
			r.mu.Unlock()
		}
		response, err := send(request)
		if after := r.onceAfter; after != nil && r.isForChild(request) {
			after(method)
		}
		return response, err
	})
	r.reconciler = r.newReconciler(children.Config{Client: must(dynamic.NewForConfig(config))})
}

func (r *recreating) isForChild(request *http.Request) bool {
	path := request.URL.Path
	return strings.Contains(path, "/namespaces/"+r.namespace+"/"+r.gvr.Resource) && !strings.HasSuffix(path, "/other")
}

// apply reconciles the child.
func (r *recreating) apply(child *unstructured.Unstructured, change ...func(*children.Child)) error {
	r.Helper()
	desired := children.Child{Object: child, OnImmutable: children.OnImmutableRecreate}
	for _, each := range change {
		each(&desired)
	}
	var err error
	r.result, err = r.reconciler.Reconcile(r.Context(), r.id(r.parents, "p"), r.parent,
		children.Desired{Stages: [][]children.Child{{desired}}})
	return err
}

func (r *recreating) sent(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[method]
}

// kept fails the test unless the reconcile fails with the API server's error and the text, and nothing was deleted.
func (r *recreating) kept(err error, uid types.UID, name, text string) {
	r.Helper()
	now := r.get(r.gvr, r.namespace, name)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), text) {
		r.Errorf("got the error %v, want one that contains %q", err, text)
	}
	if n := r.sent(http.MethodDelete); n != 0 || now == nil || now.GetUID() != uid {
		r.Errorf("%d deletions, and the object is %v", n, now)
	}
}

func (r *recreating) set(object *unstructured.Unstructured, value any, path ...string) *unstructured.Unstructured {
	r.Helper()
	object = object.DeepCopy()
	r.noError(unstructured.SetNestedField(object.Object, value, path...))
	return object
}

const onceJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  suspend: true
  template:
    metadata: {labels: {app: x}}
    spec: {restartPolicy: Never, containers: [{name: a, image: nginx}]}
`

const onePod = `
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {nodeName: none, automountServiceAccountToken: false, containers: [{name: a, image: nginx, command: [x]}]}
`

// immutableMap returns an immutable ConfigMap.
func (r *recreating) immutableMap(value string) *unstructured.Unstructured {
	object := newConfigMap(r.namespace, "fixed", value)
	object.Object["immutable"] = true
	return object
}

// By default, a child that cannot be changed is kept, and no dry run is sent. With Recreate, it is replaced once.
func TestHandlers_RecreateImmutable(t *testing.T) {
	for name, test := range map[string]struct {
		gvr         schema.GroupVersionResource
		child, edit string
	}{
		"the template of a Job":        {jobs, onceJob, "image: nginx/image: other"},
		"the selector of a Deployment": {deployments, shopDeployment, "app: x/app: z"},
		"the cluster IP of a Service":  {services, shopService, "spec: {selector/spec: {clusterIP: None, selector"},
		"a Secret": {secrets,
			`{apiVersion: v1, kind: Secret, metadata: {name: key}, immutable: true, stringData: {a: before}}`, "before/after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after, _ := strings.Cut(test.edit, "/")
			old := newConverging(t).parse(test.child)
			r := newRecreating(t, test.gvr, old.GetKind())
			r.noError(r.apply(old))
			uid := r.get(test.gvr, r.namespace, old.GetName()).GetUID()
			changed := r.parse(strings.ReplaceAll(test.child, before, after))
			for _, value := range []children.OnImmutable{"", children.OnImmutableFail} {
				err := r.apply(changed, func(child *children.Child) { child.OnImmutable = value })
				r.kept(err, uid, old.GetName(), "")
			}
			if n := r.sent("dry run"); n != 0 {
				t.Errorf("%d dry runs", n)
			}
			for range 3 {
				r.noError(r.apply(changed))
			}
			now := r.get(test.gvr, r.namespace, old.GetName())
			if now.GetUID() == uid || r.sent(http.MethodDelete) != 1 || r.sent("dry run") != 1 {
				t.Errorf("the UID was %s and is %s, after %d deletions and %d dry runs", uid, now.GetUID(),
					r.sent(http.MethodDelete), r.sent("dry run"))
			}
			r.noError(isController(r.parent, now))
			r.restart()
			r.noError(r.apply(changed))
			if n := r.sent(http.MethodDelete); n != 1 {
				t.Errorf("%d deletions after a restart", n)
			}
		})
	}
}

// A child is kept if the API server would not create the new one, and the dry run is not repeated on each attempt.
func TestHandlers_RecreateNeedsAValidChild(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, jobs, "Job")
	job := r.parse(onceJob)
	r.noError(r.apply(job))
	uid := r.get(jobs, r.namespace, "once").GetUID()
	invalid := r.set(job, "Sometimes", "spec", "template", "spec", "restartPolicy")
	for range 4 {
		r.kept(r.apply(invalid), uid, "once", "a dry run of its creation fails")
	}
	if n := r.sent("dry run"); n != 1 {
		t.Errorf("%d dry runs", n)
	}
	r.noError(r.apply(job))
}

// Children that were adopted, that others hold with a finalizer, or that no longer belong to the parent are kept.
func TestHandlers_RecreateSparesOthers(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*recreating)
		want    string
	}{
		"it was adopted": {func(r *recreating) {
			r.put(configMaps, newConfigMap(r.namespace, "fixed", "x"))
			adopt := func(child *children.Child) { child.Adopt = true }
			r.noError(r.apply(newConfigMap(r.namespace, "fixed", "x"), adopt))
			r.noError(r.apply(newConfigMap(r.namespace, "fixed", "y"), adopt))
			r.noError(r.apply(r.immutableMap("y")))
		}, "it was adopted"},
		"a copy of another child was adopted": {func(r *recreating) {
			r.noError(r.apply(newConfigMap(r.namespace, "other", "x")))
			object := r.get(configMaps, r.namespace, "other")
			object.SetName("fixed")
			object.SetResourceVersion("")
			object.SetUID("")
			object.SetOwnerReferences(nil)
			object.SetLabels(nil)
			object.SetManagedFields(nil)
			_, err := r.in(configMaps, r.namespace).Create(r.Context(), object, metav1.CreateOptions{})
			r.noError(err)
			_, err = r.reconciler.Reconcile(r.Context(), r.id(r.parents, "p"), r.parent, children.Desired{
				Stages: [][]children.Child{{{Object: r.immutableMap("x"), Adopt: true}}}, Partial: true})
			r.noError(err)
		}, "it was adopted"},
		"it has a finalizer": {func(r *recreating) {
			r.noError(r.apply(r.immutableMap("x")))
			r.merge(configMaps, r.namespace, "fixed", `{"metadata": {"finalizers": ["example.com/hold"]}}`)
		}, "it has finalizers: example.com/hold"},
		"its label was changed": {func(r *recreating) {
			r.noError(r.apply(r.immutableMap("x")))
			r.merge(configMaps, r.namespace, "fixed", `{"metadata": {"labels": {"`+platformName+`/parent": "other"}}}`)
		}, "its owner reference or its labels have been changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecreating(t, configMaps, "ConfigMap")
			test.prepare(r)
			uid := r.get(configMaps, r.namespace, "fixed").GetUID()
			for range 2 {
				r.kept(r.apply(r.immutableMap("z"), func(child *children.Child) { child.Adopt = true }), uid, "fixed", test.want)
				r.restart()
			}
			r.merge(configMaps, r.namespace, "fixed", `{"metadata": {"finalizers": null}}`)
		})
	}
}

// An object of someone else is neither changed nor deleted, whether it exists before or replaces the child in between.
func TestHandlers_RecreateSparesReplacements(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	r.noError(r.apply(r.immutableMap("x")))
	var other *unstructured.Unstructured
	r.onceAfter = func(method string) {
		if method != http.MethodGet || r.sent("dry run") == 0 {
			return
		}
		r.onceAfter = nil
		r.noError(r.in(configMaps, r.namespace).Delete(r.Context(), "fixed", metav1.DeleteOptions{}))
		other = r.put(configMaps, r.immutableMap("other"))
	}
	if err := r.apply(r.immutableMap("y")); !errors.Is(err, children.ErrNotOwned) || other == nil {
		t.Fatalf("got %v", err)
	}
	for range 2 {
		if err := r.apply(r.immutableMap("z")); !errors.Is(err, children.ErrNotOwned) {
			t.Errorf("got %v", err)
		}
	}
	if now := r.get(configMaps, r.namespace, "fixed"); now == nil || now.GetUID() != other.GetUID() {
		t.Errorf("the object is %v", now)
	}
}

// A child that changes between the refused update and the deletion is not deleted on the basis of its old state.
func TestHandlers_RecreateDeletesOnlyTheRefusedVersion(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	r.noError(r.apply(r.immutableMap("x")))
	r.onceAfter = func(method string) {
		if method != http.MethodGet || r.sent("dry run") == 0 {
			return
		}
		r.onceAfter = nil
		r.merge(configMaps, r.namespace, "fixed", `{"metadata": {"finalizers": ["example.com/hold"]}}`)
	}
	uid := r.get(configMaps, r.namespace, "fixed").GetUID()
	err := r.apply(r.immutableMap("y"))
	now := r.get(configMaps, r.namespace, "fixed")
	r.merge(configMaps, r.namespace, "fixed", `{"metadata": {"finalizers": null}}`)
	if now.GetUID() != uid || now.GetDeletionTimestamp() != nil || !apierrors.IsInvalid(err) {
		t.Errorf("got %v, and the object is %v", err, now)
	}
	r.noError(r.apply(r.immutableMap("y")))
}

// A parent that is being deleted, for example with orphaned children, does not lose a child.
func TestHandlers_RecreateNeedsTheParent(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	r.noError(r.apply(r.immutableMap("x")))
	r.merge(r.parents, r.namespace, "p", `{"metadata": {"finalizers": ["example.com/hold"]}}`)
	r.noError(r.in(r.parents, r.namespace).Delete(r.Context(), "p", metav1.DeleteOptions{}))
	uid := r.get(configMaps, r.namespace, "fixed").GetUID()
	err := r.apply(r.immutableMap("y"))
	if now := r.get(configMaps, r.namespace, "fixed"); err != nil || now == nil || now.GetUID() != uid {
		t.Errorf("got %v, and the object is %v", err, now)
	}
	r.merge(r.parents, r.namespace, "p", `{"metadata": {"finalizers": null}}`)
}

// A child is recreated at most once per minute, and at most once for a desired state, also under another leader.
func TestHandlers_RecreationsAreLimited(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	for _, value := range []string{"x", "y"} {
		r.noError(r.apply(r.immutableMap(value)))
	}
	uid := r.get(configMaps, r.namespace, "fixed").GetUID()
	for range 2 {
		for value, want := range map[string]string{"z": "in the last 1m0s", "a": "in the last 1m0s"} {
			if err := r.apply(r.immutableMap(value)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		}
		r.restart()
	}
	if now := r.get(configMaps, r.namespace, "fixed"); now.GetUID() != uid || r.sent(http.MethodDelete) != 1 {
		t.Errorf("%d deletions", r.sent(http.MethodDelete))
	}
}

// Removing the annotation does not lift the limit.
func TestHandlers_RecreationsAreLimitedWithoutTheAnnotation(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	for _, value := range []string{"x", "y"} {
		r.noError(r.apply(r.immutableMap(value)))
	}
	r.merge(configMaps, r.namespace, "fixed", `{"metadata": {"annotations": {"`+platformName+`/recreated": null}}}`)
	if err := r.apply(r.immutableMap("z")); !apierrors.IsInvalid(err) || r.sent(http.MethodDelete) != 1 {
		t.Errorf("%d deletions, and the error %v", r.sent(http.MethodDelete), err)
	}
}

// A child that became immutable by hand is recreated, but only once for the same desired state: an admission webhook
// could change each new object.
func TestHandlers_RecreateOnceForADesiredState(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	child := newConfigMap(r.namespace, "fixed", "x")
	freeze := func() {
		r.merge(configMaps, r.namespace, "fixed", `{"data": {"key": "mine"}, "immutable": true}`)
	}
	r.noError(r.apply(child))
	freeze()
	r.noError(r.apply(child))
	freeze()
	for range 2 {
		err := r.apply(child)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already recreated for this desired state") {
			t.Errorf("got %v", err)
		}
		r.restart()
	}
	if n := r.sent(http.MethodDelete); n != 1 {
		t.Errorf("%d deletions", n)
	}
}

// A child is also recreated if its managedFields were repaired before the update was refused.
func TestHandlers_RecreateAfterARepair(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, services, "Service")
	r.noError(r.apply(r.parse(shopService)))
	uid := r.get(services, r.namespace, "shop").GetUID()
	replacePort := func() {
		r.edit("kubectl-edit", services, "shop", `[{"op": "replace", "path": "/spec/ports/0/port", "value": 8080}]`)
	}
	replacePort()
	changed := r.set(r.parse(shopService), "None", "spec", "clusterIP")
	r.noError(r.apply(changed))
	if now := r.get(services, r.namespace, "shop"); now.GetUID() == uid || r.sent(http.MethodDelete) != 1 {
		t.Errorf("the UID was %s, and the object is %v", uid, now)
	}
	replacePort()
	r.noError(r.apply(changed))
	if got := namesAt(r.get(services, r.namespace, "shop"), "port", "spec", "ports"); got != "80" {
		t.Errorf("got the ports %s", got)
	}
}

// A StatefulSet whose deletion deletes its volumes is kept.
func TestHandlers_RecreateSparesVolumes(t *testing.T) {
	t.Parallel()
	sets := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
	r := newRecreating(t, sets, "StatefulSet")
	set := r.parse(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 0
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}
  selector: {matchLabels: {app: x}}
  template: {metadata: {labels: {app: x}}, spec: {containers: [{name: a, image: nginx}]}}
`)
	r.noError(r.apply(set))
	uid := r.get(sets, r.namespace, "db").GetUID()
	changed := r.set(set, "other", "spec", "serviceName")
	r.kept(r.apply(changed), uid, "db", "its persistentVolumeClaimRetentionPolicy deletes volumes")
}

// If the deletion takes time, the new child is created once the old one is gone.
func TestHandlers_RecreateWaits(t *testing.T) {
	t.Parallel()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	r := newRecreating(t, pods, "Pod")
	pod := r.parse(onePod)
	r.noError(r.apply(pod))
	uid := r.get(pods, r.namespace, "one").GetUID()
	changed := r.parse(strings.ReplaceAll(onePod, "[x]", "[z]"))
	for range 2 {
		err := r.apply(changed)
		if child := r.result.Children[0]; err == nil || child.Outcome != children.OutcomeWaiting ||
			len(r.result.Pending) != 1 {
			t.Fatalf("got %+v and %v", child, err)
		}
	}
	now := r.get(pods, r.namespace, "one")
	if now.GetUID() != uid || now.GetDeletionTimestamp() == nil || r.sent(http.MethodDelete) != 1 {
		t.Fatalf("after %d deletions, the object is %v", r.sent(http.MethodDelete), now)
	}
	atOnce := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	r.noError(r.in(pods, r.namespace).Delete(r.Context(), "one", atOnce))
	r.noError(r.apply(changed))
	r.restart()
	r.noError(r.apply(changed))
	now = r.get(pods, r.namespace, "one")
	if now.GetUID() == uid || now.GetAnnotations()[platformName+"/recreated"] == "" {
		t.Errorf("the object is %v", now)
	}
}

// Values that are not allowed are errors of the desired child, and nothing is written.
func TestHandlers_RecreateIsRefused(t *testing.T) {
	t.Parallel()
	r := newRecreating(t, configMaps, "ConfigMap")
	object := func(apiVersion, kind string) *unstructured.Unstructured {
		return r.parse(fmt.Sprintf(`{apiVersion: %s, kind: %s, metadata: {name: fixed}}`, apiVersion, kind))
	}
	for want, child := range map[string]children.Child{
		"the child is retained":                 {Object: object("v1", "ConfigMap"), Retain: true},
		"deleting a Namespace deletes data":     {Object: object("v1", "Namespace")},
		"a PersistentVolumeClaim deletes data":  {Object: object("v1", "PersistentVolumeClaim")},
		"a PersistentVolume deletes data":       {Object: object("v1", "PersistentVolume")},
		"a CustomResourceDefinition deletes da": {Object: object("apiextensions.k8s.io/v1", "CustomResourceDefinition")},
		`"Always": must be Fail or Recreate`:    {Object: object("v1", "ConfigMap"), OnImmutable: "Always"},
	} {
		if child.OnImmutable == "" {
			child.OnImmutable = children.OnImmutableRecreate
		}
		_, err := r.reconciler.Reconcile(r.Context(), r.id(r.parents, "p"), r.parent,
			children.Desired{Stages: [][]children.Child{{child}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
