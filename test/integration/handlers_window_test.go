package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

var deletedParents = flag.Int("deleted-parents", 60,
	"number of parents that TestHandlers_ParentsDeletedWhileTheyAreCreated deletes")

// delayDeletions makes the API server call delay before it deletes a parent in the namespace of the test. The API
// server has already looked for finalizers then (kubernetes issue 77988).
func (s *setting) delayDeletions(delay func(name string)) {
	s.Helper()
	const probe = "probe"
	var called atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct{ UID, Name string } `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Request.Name == probe {
			called.Store(true)
		} else {
			delay(review.Request.Name)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
			"response": map[string]any{"uid": review.Request.UID, "allowed": true},
		})
	}))
	s.Cleanup(server.Close)
	name, webhooks := "slow-"+s.namespace, s.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := webhooks.Create(s.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "slow.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To(int32(30)),
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Delete},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{s.parents.Group}, APIVersions: []string{"*"}, Resources: []string{s.parents.Resource},
				},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
				"kubernetes.io/metadata.name": s.namespace,
			}},
		}},
	}, metav1.CreateOptions{})
	s.noError(err)
	s.Cleanup(func() { s.noError(webhooks.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	s.eventually("the webhook is called", func() error {
		s.put(s.parents, newObject(s.parents, "Platform", s.namespace, probe, nil))
		err := s.in(s.parents, s.namespace).Delete(s.Context(), probe, metav1.DeleteOptions{})
		if err == nil && !called.Load() {
			err = errors.New("it was not called")
		}
		return err
	})
}

// doomedParent is a parent whose deletion has begun before its finalizer is added, and ends with the function end.
type doomedParent struct {
	*setting
	object *unstructured.Unstructured
	end    func()
}

func (s *setting) newDoomedParent() *doomedParent {
	s.Helper()
	began, mayEnd, deleted := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	release := func() { once.Do(func() { close(mayEnd) }) }
	s.Cleanup(release)
	var begin sync.Once
	s.delayDeletions(func(string) {
		begin.Do(func() { close(began) })
		<-mayEnd
	})
	parent := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "p", nil))
	go func() {
		options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
		deleted <- s.in(s.parents, s.namespace).Delete(context.Background(), "p", options)
	}()
	<-began
	return &doomedParent{setting: s, object: parent, end: func() {
		s.Helper()
		release()
		s.noError(<-deleted)
		if now := s.get(s.parents, s.namespace, "p"); now != nil {
			s.Fatalf("the parent exists with the finalizers %q", now.GetFinalizers())
		}
	}}
}

// doomedFamily is a doomed parent with children. The ConfigMap far is in another namespace.
type doomedFamily struct {
	*doomedParent
	other      string // the other namespace
	cluster    string // the name of the cluster-scoped child
	reconciler *children.Reconciler
	desired    children.Desired
	failing    atomic.Bool // whether deletions of far fail
}

func newDoomedFamily(s *setting) *doomedFamily {
	s.Helper()
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
	f := &doomedFamily{other: s.namespace + "-other", cluster: s.namespace + "-child"}
	s.put(namespaces, newObject(namespaces, "Namespace", "", f.other, nil))
	f.reconciler = s.newReconciler(children.Config{Client: must(dynamic.NewForConfig(intercepted(s.config,
		func(r *http.Request, send send) (*http.Response, error) {
			if f.failing.Load() && r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/configmaps/far") {
				return nil, apierrors.NewForbidden(configMaps.GroupResource(), "far", errors.New("test"))
			}
			return send(r)
		},
	)))})
	f.doomedParent = s.newDoomedParent()
	retained := children.Child{Object: newConfigMap(f.other, "retained", "x"), Retain: true, Adopt: true}
	cluster := newObject(namespaces, "Namespace", "", f.cluster, nil)
	f.desired = children.Desired{Stages: [][]children.Child{
		append(children.Stage(newConfigMap("", "near", "x"), cluster), retained),
		children.Stage(newConfigMap(f.other, "far", "x")),
	}}
	_, err := f.reconciler.Reconcile(s.Context(), s.parent("p"), f.object, f.desired)
	s.noError(err)
	if !slices.Contains(s.get(s.parents, s.namespace, "p").GetFinalizers(), platformName+"/children") {
		s.Fatal("the parent has no finalizer")
	}
	return f
}

// addStranger creates an object that has the metadata of a child.
func (f *doomedFamily) addStranger() {
	f.Helper()
	copied := f.far()
	stranger := newConfigMap(f.other, "stranger", "x")
	stranger.SetLabels(copied.GetLabels())
	stranger.SetAnnotations(copied.GetAnnotations())
	f.put(configMaps, stranger)
}

func (f *doomedFamily) far() *unstructured.Unstructured {
	f.Helper()
	return f.get(configMaps, f.other, "far")
}

func (f *doomedFamily) forget() error { return f.reconciler.Forget(f.Context(), f.parent("p")) }

func (f *doomedFamily) forgetAfterTheEnd() {
	f.end()
	f.noError(f.forget())
}

func (f *doomedFamily) forgetBeforeTheEnd() {
	f.noError(f.forget())
	if f.far() == nil {
		f.Fatal("the child of a parent that exists was deleted")
	}
	f.end()
	f.noError(f.forget())
}

func (f *doomedFamily) forgetWhileADeletionFails() {
	f.end()
	f.failing.Store(true)
	if err := f.forget(); !apierrors.IsForbidden(err) {
		f.Errorf("got %v", err)
	}
	f.failing.Store(false)
	f.noError(f.forget())
}

func (f *doomedFamily) createParentAgain() {
	f.end()
	before := f.far().GetUID()
	parent := f.put(f.parents, newObject(f.parents, "Platform", f.namespace, "p", nil))
	f.eventually("the new parent has its children", func() error {
		_, err := f.reconciler.Reconcile(f.Context(), f.parent("p"), parent, f.desired)
		return err
	})
	if now := f.far(); now == nil || now.GetUID() == before {
		f.Errorf("the new parent has taken over the child: %v", now)
	}
	f.eventually("the new parent has no children", func() error {
		_, err := f.reconciler.Reconcile(f.Context(), f.parent("p"), parent, children.Desired{})
		return err
	})
}

// childrenAreGone returns an error while a child that is not retained exists.
func (f *doomedFamily) childrenAreGone() error {
	if now := f.get(namespaces, "", f.cluster); now != nil && now.GetDeletionTimestamp() == nil {
		return errors.New("the cluster-scoped child exists")
	}
	for _, child := range []*unstructured.Unstructured{f.far(), f.get(configMaps, f.namespace, "near")} {
		if child != nil {
			return fmt.Errorf("%s exists", child.GetName())
		}
	}
	return nil
}

// A deletion that began before the finalizer was added removes the parent in spite of the finalizer.
func TestHandlers_ChildrenOfAParentThatWasRemovedInSpiteOfItsFinalizer(t *testing.T) {
	for name, test := range map[string]func(*doomedFamily){
		"is gone": (*doomedFamily).forgetAfterTheEnd,
		"leaves the selection, or is missing in the cache, at first": (*doomedFamily).forgetBeforeTheEnd,
		"is gone, and a deletion fails":                              (*doomedFamily).forgetWhileADeletionFails,
		"is created again":                                           (*doomedFamily).createParentAgain,
	} {
		t.Run(name, func(t *testing.T) {
			f := newDoomedFamily(newSetting(newHarness(t)))
			f.addStranger()
			test(f)
			f.eventually("the children are gone", f.childrenAreGone)
			for _, name := range []string{"retained", "stranger"} {
				if f.get(configMaps, f.other, name) == nil {
					t.Errorf("%s was deleted", name)
				}
			}
		})
	}
}

// Someone removes the finalizer, and then deletes the parent and orphans its dependents.
func TestHandlers_OrphansOfAParentWithoutItsFinalizerAreKept(t *testing.T) {
	t.Parallel()
	s := newSetting(newHarness(t))
	other := s.newNamespace()
	parent := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "p", nil))
	reconciler := s.newReconciler(children.Config{})
	_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage(newConfigMap(other, "far", "x")))
	s.noError(err)
	s.syncCollector()
	s.merge(s.parents, s.namespace, "p", `{"metadata": {"finalizers": null}}`)
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}
	s.noError(s.in(s.parents, s.namespace).Delete(t.Context(), "p", options))
	s.eventually("the parent is gone", func() error {
		if s.get(s.parents, s.namespace, "p") != nil {
			return errors.New("it exists")
		}
		return nil
	})
	s.noError(reconciler.Forget(t.Context(), s.parent("p")))
	if far := s.get(configMaps, other, "far"); far == nil || far.GetAnnotations()[platformName+"/parent"] != "" {
		t.Errorf("the orphan is %v", far)
	}
	left, err := s.in(configMaps, s.namespace).List(t.Context(), metav1.ListOptions{})
	s.noError(err)
	for _, object := range left.Items {
		if strings.HasPrefix(object.GetName(), "children-of-") {
			t.Errorf("%s exists", object.GetName())
		}
	}
}

// Cleanup of a Finalizer is called for an object that was removed in spite of the finalizer.
func TestHandlers_CleanupIsCalledForAnObjectThatWasRemovedInSpiteOfItsFinalizer(t *testing.T) {
	for name, recreated := range map[string]bool{"gone": false, "created again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetting(newHarness(t))
			d := s.newDoomedParent()
			var calls []string
			handler := handlers.Object(handlers.Live(s.client), handlers.Finalizer(handlers.FinalizerConfig{
				Client: s.client, Name: finalizerName,
				Reconcile: func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, o *unstructured.Unstructured) error {
					calls = append(calls, "reconcile "+string(o.GetUID()))
					return nil
				},
				Cleanup: func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, o *unstructured.Unstructured) error {
					calls = append(calls, "clean up "+string(o.GetUID()))
					if len(calls) == 2 {
						return errors.New("the first attempt fails")
					}
					if o.GetDeletionTimestamp() == nil {
						t.Error("the object has no deletionTimestamp")
					}
					return nil
				},
			}), nil)
			s.noError(handler(t.Context(), s.parent("p")))
			d.end()
			uid := string(d.object.GetUID())
			want := []string{"reconcile " + uid, "clean up " + uid, "clean up " + uid}
			if recreated {
				later := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "p", nil))
				want = append(want, "reconcile "+string(later.GetUID()), "reconcile "+string(later.GetUID()))
			}
			if err := handler(t.Context(), s.parent("p")); err == nil {
				t.Error("the error of Cleanup was lost")
			}
			for range 2 {
				s.noError(handler(t.Context(), s.parent("p")))
			}
			if !slices.Equal(calls, want) {
				t.Errorf("got the calls %q, want %q", calls, want)
			}
		})
	}
}

// deleteWhileCreated creates the parents p0, p1 and so on, and deletes each of them after up to 60 ms. It returns when
// all requests have returned.
func (s *setting) deleteWhileCreated(parents int) {
	s.Helper()
	var deletions sync.WaitGroup
	for i := range parents {
		name := fmt.Sprintf("p%d", i)
		s.put(s.parents, newObject(s.parents, "Platform", s.namespace, name, nil))
		deletions.Go(func() {
			time.Sleep(rand.N(60 * time.Millisecond))
			policy := metav1.DeletePropagationBackground
			if i%4 == 0 {
				policy = metav1.DeletePropagationForeground
			}
			err := s.in(s.parents, s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy})
			if err != nil && !apierrors.IsNotFound(err) {
				s.Error(err)
			}
		})
	}
	deletions.Wait()
}

// countRemovedInSpite counts the parents that are removed with the finalizer, until stop is called.
func (s *setting) countRemovedInSpite() (stop func() int) {
	s.Helper()
	watched := must(s.in(s.parents, s.namespace).Watch(s.Context(), metav1.ListOptions{}))
	var watching sync.WaitGroup
	var count int
	watching.Go(func() {
		for event := range watched.ResultChan() {
			parent, _ := event.Object.(*unstructured.Unstructured)
			if event.Type == watch.Deleted && slices.Contains(parent.GetFinalizers(), platformName+"/children") {
				count++
			}
		}
	})
	return func() int {
		watched.Stop()
		watching.Wait()
		return count
	}
}

// place is a type of objects and the namespace that they are in.
type place struct {
	gvr       schema.GroupVersionResource
	namespace string
}

// nothingIsLeft returns an error while one of the places has an object that does not belong to the cluster.
func (h *harness) nothingIsLeft(places ...place) error {
	var left []string
	for _, p := range places {
		list, err := h.in(p.gvr, p.namespace).List(h.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, object := range list.Items {
			if object.GetName() != "kube-root-ca.crt" {
				left = append(left, object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName())
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%d objects are left: %.10q", len(left), left[:min(len(left), 10)])
	}
	return nil
}

// Parents are deleted while their finalizer is added and their children are created. A webhook makes deletions slow.
func TestHandlers_ParentsDeletedWhileTheyAreCreated(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	lands := h.defineKind("Land", apiextensionsv1.ClusterScoped)
	s.mapper, _ = h.mapperOf(s.parents, s.gadgets, lands)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Group: lands.Group, Kind: "Land"}, CrossNamespace: true}}
	other := h.newNamespace()
	s.delayDeletions(func(string) { time.Sleep(50 * time.Millisecond) })
	f := s.serveParents(func(parent *unstructured.Unstructured) children.Desired {
		name := parent.GetName()
		return children.Desired{Stages: [][]children.Child{
			children.Stage(newConfigMap("", name, "x"), newObject(s.gadgets, "Gadget", other, name, nil)),
			children.Stage(newConfigMap(other, name, "x"), newObject(lands, "Land", "", s.namespace+"-"+name, nil)),
			children.Stage(newObject(s.gadgets, "Gadget", "", name, nil)),
		}}
	}, configMaps, s.gadgets, lands)
	stop := s.countRemovedInSpite()
	s.deleteWhileCreated(*deletedParents)
	h.eventually("nothing is left", func() error {
		return h.nothingIsLeft(
			place{s.parents, s.namespace}, place{configMaps, s.namespace}, place{configMaps, other},
			place{s.gadgets, s.namespace}, place{s.gadgets, other}, place{lands, ""},
		)
	})
	inSpite := stop()
	t.Logf("%d parents, %d of them removed with the finalizer; %d writes", *deletedParents, inSpite, f.writes.Load())
}
