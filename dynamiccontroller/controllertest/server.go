package controllertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Type is a type that a [Server] serves.
type Type struct {
	GVR  schema.GroupVersionResource
	Kind string
	// ClusterScoped is true if the objects of the type have no namespace.
	ClusterScoped bool
}

// Server is an API server in memory. It is a dynamic client for its own objects. The package documentation describes
// what it simulates. Its methods are safe for concurrent use.
//
// Apply, Add, Get and Delete are for the test itself. They panic if the test made a mistake, for example if the type of
// an object is not served.
type Server struct {
	fake clienttesting.Fake // passes the requests of clients to the reactors; the last one is react

	mu      sync.Mutex // guards the fields below and what they point to
	tables  map[schema.GroupVersionResource]*table
	version int64    // the latest resourceVersion
	created int      // number of created objects, for UIDs and generated names
	writes  []string // see TakeWrites
}

var _ dynamic.Interface = &Server{}

// NewServer returns a server without objects that serves the given types. Requests for other types return a NotFound
// error, as from an API server without the type.
func NewServer(served ...Type) *Server {
	s := &Server{tables: map[schema.GroupVersionResource]*table{}, version: 1}
	for _, t := range served {
		s.tables[t.GVR] = newTable(t)
	}
	s.fake.AddReactor("*", "*", s.react)
	return s
}

// fieldManager is the field manager of Apply and Add, and of writes that do not set one.
const fieldManager = "controllertest"

// Apply creates or changes an object, as kubectl apply --server-side --force-conflicts does for a user. The object is a
// manifest with the fields that the user sets, not a result of Get. If it has a status, the status is applied as well.
// Apply returns the identifiers of the object.
func (s *Server) Apply(object *unstructured.Unstructured) dynamiccontroller.ObjectIdentifiers {
	s.mu.Lock()
	defer s.mu.Unlock()
	table := s.tableOfLocked(object)
	w := write{table: table, key: keyOf(object), manager: fieldManager}
	applied, err := sent(object)
	if err == nil {
		_, err = s.applyLocked(w, applied.DeepCopy(), true)
	}
	if _, found := object.Object["status"]; found && err == nil && table.rules.status {
		w.subresource = "status"
		_, err = s.applyLocked(w, applied, true)
	}
	if err != nil {
		panic(fmt.Sprintf("controllertest: apply %s %s: %v", object.GetKind(), w.key, err))
	}
	return table.identifiers(w.key)
}

// Add stores an object as it is, or replaces it, and returns its identifiers. Use it for a state that Apply cannot
// create, for example a given UID or deletionTimestamp. The object is not validated, but later writes to it are, as a
// whole. The server sets the resourceVersion. It also sets the UID, generation and creationTimestamp if the object has
// none. An object with a deletionTimestamp must have a finalizer.
func (s *Server) Add(object *unstructured.Unstructured) dynamiccontroller.ObjectIdentifiers {
	s.mu.Lock()
	defer s.mu.Unlock()
	table := s.tableOfLocked(object)
	w := write{table: table, key: keyOf(object), manager: fieldManager}
	next, err := sent(object)
	if err == nil && next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		err = errors.New("an API server never returns an object that has a deletionTimestamp and no finalizer; " +
			"add a finalizer, or do not add the object")
	}
	if err == nil {
		s.setDefaultsLocked(table, next)
		next = table.fields.update(table.empty(), next, w.manager)
	}
	if err != nil {
		panic(fmt.Sprintf("controllertest: add %s %s: %v", object.GetKind(), w.key, err))
	}
	s.storeLocked(w, table.objects[w.key], next)
	return table.identifiers(w.key)
}

// Get returns an object, or nil if it does not exist. The caller owns the object.
func (s *Server) Get(id dynamiccontroller.ObjectIdentifiers) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object := s.tableLocked(id.GVR).objects[keyIn(id)]; object != nil {
		return object.DeepCopy()
	}
	return nil
}

// Delete deletes an object, as a user does. An object with finalizers only gets a deletionTimestamp. Delete panics if
// the object does not exist.
func (s *Server) Delete(id dynamiccontroller.ObjectIdentifiers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.deleteLocked(write{table: s.tableLocked(id.GVR), key: keyIn(id)}, metav1.DeleteOptions{})
	if err != nil {
		panic(fmt.Sprintf("controllertest: delete %s: %v", id.NamespacedKey, err))
	}
}

// TakeWrites returns the writes of clients since the last call, each with its verb, resource and name, such as
// "apply configmaps a" or "update status of widgets first". A write is a request that succeeded and was not a dry run,
// even if it changed nothing: an idle handler should not send it. Calls to Apply, Add and Delete are not included.
func (s *Server) TakeWrites() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	writes := s.writes
	s.writes = nil
	return writes
}

// Actions returns all requests of clients since the server was created, including reads, dry runs and requests that
// failed. Use it to check the content of requests.
func (s *Server) Actions() []clienttesting.Action { return s.fake.Actions() }

// PrependReactor adds a function that is called before a request is performed, and that can return an error instead:
//
//	server.PrependReactor("patch", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
//		return true, nil, apierrors.NewInternalError(errors.New("on purpose"))
//	})
//
// To let the request succeed later, count the calls in the function, or read an atomic.Bool. Requests for the status
// have the resource of their object; a function can distinguish them by GetSubresource of the action.
//
// The verb is create, update, patch, delete, delete-collection, get, list or watch. Server-side apply is a patch. The
// resource is the plural. Both can be "*". If the function returns false, the request is performed.
//
// The function can call Apply, Add, Get and Delete, for example to cause a conflict. It must not send requests as a
// client, because one request is performed at a time. For the same reason, it must not wait or sleep, and must not call
// Actions or PrependReactor.
func (s *Server) PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc) {
	s.fake.Lock()
	defer s.fake.Unlock()
	s.fake.PrependReactor(verb, resource, reaction)
}

// MetadataClient returns a client for the metadata of the server's objects, for
// [dynamiccontroller.WithMetadataClient].
func (s *Server) MetadataClient() metadata.Interface { return metadataClient{s} }

// RESTMapper returns a mapper for the types of the server.
func (s *Server) RESTMapper() meta.RESTMapper {
	s.mu.Lock()
	defer s.mu.Unlock()
	var versions []schema.GroupVersion
	for gvr := range s.tables {
		if !slices.Contains(versions, gvr.GroupVersion()) {
			versions = append(versions, gvr.GroupVersion())
		}
	}
	slices.SortFunc(versions, func(a, b schema.GroupVersion) int { // v1 precedes v1beta1
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	mapper := meta.NewDefaultRESTMapper(versions)
	for _, table := range s.tables {
		scope := meta.RESTScopeNamespace
		if table.ClusterScoped {
			scope = meta.RESTScopeRoot
		}
		singular := table.GVR.GroupVersion().WithResource(strings.ToLower(table.Kind))
		mapper.AddSpecific(table.gvk(), table.GVR, singular, scope)
	}
	return mapper
}

// IsWatchListSemanticsUnSupported makes reflectors use plain LIST requests instead of streaming lists, as with
// client-go's fake clients.
func (s *Server) IsWatchListSemanticsUnSupported() bool { return true }

// tableLocked returns the table of a type. It panics if the type is not served.
func (s *Server) tableLocked(gvr schema.GroupVersionResource) *table {
	table := s.tables[gvr]
	if table == nil {
		panic(fmt.Sprintf("controllertest: %s is not served; pass its type to NewServer", gvr))
	}
	return table
}

// tableOfLocked returns the table for an object. It panics if the type of the object is not served, or if the object
// has no name or the wrong scope.
func (s *Server) tableOfLocked(object *unstructured.Unstructured) *table {
	for _, table := range s.tables {
		if table.gvk() != object.GroupVersionKind() {
			continue
		}
		if object.GetName() == "" {
			panic(fmt.Sprintf("controllertest: a %s has no metadata.name", object.GetKind()))
		}
		if table.ClusterScoped != (object.GetNamespace() == "") {
			panic(fmt.Sprintf("controllertest: %s %s has the namespace %q, but ClusterScoped of its Type is %t",
				object.GetKind(), object.GetName(), object.GetNamespace(), table.ClusterScoped))
		}
		return table
	}
	panic(fmt.Sprintf("controllertest: %s is not served; pass its type to NewServer", object.GroupVersionKind()))
}

func keyOf(object *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func keyIn(id dynamiccontroller.ObjectIdentifiers) types.NamespacedName {
	return types.NamespacedName{Namespace: id.Namespace(), Name: id.Name()}
}
