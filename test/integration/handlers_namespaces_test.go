package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// imaginary is the prefix of namespaces that exist only for the clients of withImaginaryNamespaces.
const imaginary = "imaginary-"

var manyNamespaces = flag.Int("namespaces", 1000, "number of namespaces in TestHandlers_ManyNamespaces")

func imaginaryNamespaces(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = imaginary + utilrand.String(8)
	}
	return names
}

// withImaginaryNamespaces returns a config whose clients can get and apply objects in imaginary namespaces. Creating
// thousands of namespaces would take minutes.
func withImaginaryNamespaces(config *rest.Config) *rest.Config {
	var lock sync.Mutex // guards objects
	objects := map[string][]byte{}
	return intercepted(config, func(r *http.Request, send send) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, "/namespaces/"+imaginary) {
			return send(r)
		}
		lock.Lock()
		defer lock.Unlock()
		status := http.StatusOK
		if r.Method == http.MethodPatch {
			object := &unstructured.Unstructured{}
			if err := json.NewDecoder(r.Body).Decode(object); err != nil {
				return nil, err
			}
			object.SetUID("imaginary-uid")
			object.SetResourceVersion("1")
			objects[r.URL.Path], _ = object.MarshalJSON()
		}
		content, exists := objects[r.URL.Path]
		if !exists {
			status = http.StatusNotFound
			missing := apierrors.NewNotFound(configMaps.GroupResource(), "a").Status()
			missing.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			content, _ = json.Marshal(missing)
		}
		return &http.Response{
			StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(bytes.NewReader(content)),
		}, nil
	})
}

// realm is a cluster-scoped parent.
type realm struct {
	*setting
	id         dynamiccontroller.ObjectIdentifiers
	reconciler *children.Reconciler
	sent       requestLog
}

// requestLog contains the paths of all write requests.
type requestLog struct {
	lock  sync.Mutex // guards paths
	paths []string
}

func (l *requestLog) contains(part string) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return slices.ContainsFunc(l.paths, func(path string) bool { return strings.Contains(path, part) })
}

func newRealm(t *testing.T, annotations map[string]string) *realm {
	h := newHarness(t)
	parents := h.defineKind("Realm", apiextensionsv1.ClusterScoped)
	s := &setting{harness: h, parents: parents}
	s.mapper, _ = h.mapperOf(parents)
	r := &realm{setting: s, id: dynamiccontroller.ObjectIdentifiers{GVR: parents, NamespacedKey: "p"}}
	imaginary := withImaginaryNamespaces(h.config)
	config := intercepted(imaginary, func(request *http.Request, send send) (*http.Response, error) {
		if isWrite(request) {
			r.sent.lock.Lock()
			r.sent.paths = append(r.sent.paths, request.URL.Path)
			r.sent.lock.Unlock()
		}
		return send(request)
	})
	r.reconciler = s.newReconciler(children.Config{
		Client: must(dynamic.NewForConfig(config)),
		Kinds:  []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	})
	parent := newObject(parents, "Realm", "", "p", nil)
	parent.SetAnnotations(annotations)
	s.put(parents, parent)
	return r
}

func (r *realm) parent() *unstructured.Unstructured {
	r.Helper()
	return r.get(r.parents, "", "p")
}

// reconcile applies the config map "a" in all namespaces and then, in the next stage, "b" in the real ones.
func (r *realm) reconcile(value string, namespaces ...string) error {
	r.Helper()
	stages := make([][]children.Child, 2)
	for _, namespace := range namespaces {
		stages[0] = append(stages[0], children.Child{Object: newConfigMap(namespace, "a", value)})
		if !strings.HasPrefix(namespace, imaginary) {
			stages[1] = append(stages[1], children.Child{Object: newConfigMap(namespace, "b", value)})
		}
	}
	_, err := r.reconciler.Reconcile(r.Context(), r.id, r.parent(), children.Desired{Stages: stages})
	return ignoreRequeue(err)
}

// valueOf returns the value of a config map, or "" if the config map does not exist.
func (r *realm) valueOf(namespace, name string) string {
	r.Helper()
	object := r.get(configMaps, namespace, name)
	if object == nil {
		return ""
	}
	value, _, _ := unstructured.NestedString(object.Object, "data", "key")
	return value
}

// recorded returns a function that reports whether the inventory contains a namespace.
func (r *realm) recorded() func(namespace string) bool {
	r.Helper()
	recorded := r.reconciler.Recorded(r.parent())
	return func(namespace string) bool { return recorded(schema.GroupKind{Kind: "ConfigMap"}, namespace) }
}

func TestHandlers_ManyNamespaces(t *testing.T) {
	r := newRealm(t, nil)
	near, far, theirs := r.newNamespace(), r.newNamespace(), r.newNamespace()
	all := append(imaginaryNamespaces(*manyNamespaces), far, near)
	r.noError(r.reconcile("x", all...))
	if a, b := r.valueOf(far, "a"), r.valueOf(near, "b"); a != "x" || b != "x" {
		t.Fatalf("the children have the values %q and %q", a, b)
	}

	forged := r.get(configMaps, far, "b").DeepCopy()
	forged.SetNamespace(theirs)
	forged.SetManagedFields(nil)
	forged.SetUID("")
	forged.SetResourceVersion("")
	forged.SetFinalizers([]string{"example.com/forged"})
	r.put(configMaps, forged)
	defer r.merge(configMaps, theirs, "b", `{"metadata":{"finalizers":null}}`)
	recorded := r.recorded()
	for namespace, want := range map[string]bool{all[0]: true, all[*manyNamespaces-1]: true, far: true, theirs: false} {
		if got := recorded(namespace); got != want {
			t.Errorf("recorded %s: %t", namespace, got)
		}
	}

	r.merge(configMaps, far, "a", `{"data":{"key":"drifted"}}`)
	r.eventually("the children in a namespace are pruned", func() error {
		r.noError(r.reconcile("x", all[:len(all)-1]...))
		if r.recorded()(near) || r.valueOf(near, "a")+r.valueOf(near, "b") != "" {
			return errors.New("they exist, or are recorded")
		}
		return nil
	})
	if value := r.valueOf(far, "a"); value != "x" {
		t.Errorf("after drift, the child has the value %q", value)
	}
	if recorded := r.recorded(); !recorded(all[0]) || !recorded(far) {
		t.Error("other namespaces are no longer recorded")
	}

	r.noError(r.in(r.parents, "").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	r.eventually("the parent is gone", func() error {
		parent := r.parent()
		if parent == nil {
			return nil
		}
		_, err := r.reconciler.Reconcile(t.Context(), r.id, parent, children.Desired{})
		return fmt.Errorf("its finalizers are %q; Reconcile returned: %s", parent.GetFinalizers(), fmt.Sprint(err))
	})
	if r.valueOf(far, "b") != "" {
		t.Error("a child in the last stage has outlived the parent")
	}
	if r.sent.contains(theirs) {
		t.Error("the forged object was written or deleted")
	}
	r.eventually("Kubernetes has deleted the first stage", func() error {
		if r.valueOf(far, "a") != "" {
			return errors.New("it exists")
		}
		return nil
	})
}

// The other annotations of the parent leave little room for the inventory.
func TestHandlers_FullInventoryKeepsWhatExists(t *testing.T) {
	t.Parallel()
	r := newRealm(t, map[string]string{"user": strings.Repeat("x", 252<<10)})
	near, far := r.newNamespace(), r.newNamespace()
	r.noError(r.reconcile("x", far, near))
	all := append(imaginaryNamespaces(1000), far)
	r.eventually("the children in a namespace are pruned", func() error {
		if err := r.reconcile("y", all...); !errors.Is(err, children.ErrInventoryFull) {
			t.Fatalf("got %v", err)
		}
		if r.valueOf(near, "a")+r.valueOf(near, "b") != "" {
			return errors.New("they exist")
		}
		return nil
	})
	if a, b := r.valueOf(far, "a"), r.valueOf(far, "b"); a != "y" || b != "y" {
		t.Errorf("the existing children have the values %q and %q", a, b)
	}
	created, recorded := 0, r.recorded()
	for _, namespace := range all[:1000] {
		exists := r.sent.contains(namespace)
		if exists != recorded(namespace) {
			t.Fatalf("%s: was written: %t", namespace, exists)
		}
		if exists {
			created++
		}
	}
	if created < 50 || created > 900 {
		t.Errorf("%d children were created", created)
	}
	all = all[900:]
	r.eventually("children that fit are applied without an error", func() error { return r.reconcile("z", all...) })
}
