package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/examples/controller-runtime/adapter"
	"github.com/dynamic-controller/engine/internal/testkit"
)

var (
	configMaps      = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	secrets         = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// teams is a typical reconciler for controller-runtime. A ConfigMap with the label "team" is a team. The team owns a
// ServiceAccount for each of its members, and has the greeting of its Namespace as an annotation.
type teams struct {
	client.Client
	panicOnce sync.Once
}

func (r *teams) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	r.panicOnce.Do(func() { panic("the first call") })
	team, namespace := &corev1.ConfigMap{}, &corev1.Namespace{}
	if err := r.Get(ctx, request.NamespacedName, team); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.Get(ctx, client.ObjectKey{Name: request.Namespace}, namespace); err != nil {
		return reconcile.Result{}, err
	}
	members := strings.Fields(team.Data["members"])
	if len(members) == 0 {
		return reconcile.Result{}, reconcile.TerminalError(errors.New("the team has no members"))
	}
	for _, name := range members {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: name}}
		if err := r.Get(ctx, client.ObjectKeyFromObject(account), account); !apierrors.IsNotFound(err) {
			if err != nil {
				return reconcile.Result{}, err
			}
			continue
		}
		if err := controllerutil.SetControllerReference(team, account, r.Scheme()); err != nil {
			return reconcile.Result{}, err
		}
		if err := r.Create(ctx, account); err != nil && !apierrors.IsAlreadyExists(err) {
			return reconcile.Result{}, err
		}
	}
	accounts := &corev1.ServiceAccountList{}
	if err := r.List(ctx, accounts, client.InNamespace(request.Namespace)); err != nil {
		return reconcile.Result{}, err
	}
	for _, account := range accounts.Items {
		if metav1.IsControlledBy(&account, team) && !slices.Contains(members, account.Name) {
			if err := r.Delete(ctx, &account); client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, err
			}
		}
	}
	if greeting := namespace.Labels["greeting"]; greeting != team.Annotations["greeting"] {
		before := team.DeepCopy()
		metav1.SetMetaDataAnnotation(&team.ObjectMeta, "greeting", greeting)
		return reconcile.Result{}, r.Patch(ctx, team, client.MergeFrom(before))
	}
	return reconcile.Result{RequeueAfter: time.Hour}, nil
}

// inNamespace maps a Namespace to the team that it contains.
func (r *teams) inNamespace(_ context.Context, namespace client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace.GetName(), Name: "red"}}}
}

// fixture contains a namespace, an engine, and a config that records read requests.
type fixture struct {
	*testing.T
	namespace string
	engine    *dynamiccontroller.DynamicController
	config    *rest.Config // records reads
	admin     client.Client

	mu    sync.Mutex // guards reads
	reads []string   // the paths of read requests
}

func (f *fixture) RoundTrip(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/api/v1/") {
			f.mu.Lock()
			f.reads = append(f.reads, r.URL.Path)
			f.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// takeReads returns the paths of the read requests since the last call.
func (f *fixture) takeReads() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	reads := f.reads
	f.reads = nil
	return reads
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, config: shared.Cluster(t).Config()}
	f.admin = must(client.New(shared.Cluster(t).Config(), client.Options{}))
	f.config.Wrap(f.RoundTrip)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "adapter-"}}
	f.noError(f.admin.Create(t.Context(), namespace))
	f.namespace = namespace.Name
	config := dynamiccontroller.Config{}
	f.engine = must(dynamiccontroller.NewForConfig(logr.Discard(), config, shared.Cluster(t).Config()))
	return f
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (f *fixture) noError(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// run runs the engine until the test ends.
func (f *fixture) run() {
	ctx, cancel := context.WithCancel(f.Context())
	ended := make(chan error)
	go func() { ended <- f.engine.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
}

func TestAdapter_RunsControllerRuntimeReconciler(t *testing.T) {
	f := newFixture(t)
	r := &teams{}
	whole := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
	owned := dynamiccontroller.Owns(serviceAccounts, whole, dynamiccontroller.WithNamespaces(f.namespace))
	watched := dynamiccontroller.Watches(namespaces, adapter.MapFunc[corev1.Namespace](r.inNamespace), whole)
	live := must(client.New(f.config, client.Options{Scheme: scheme.Scheme}))
	r.Client = adapter.NewClient(live, f.engine.Lister, adapter.WatchCache(f.engine, configMaps, owned, watched))
	f.noError(f.engine.StartServingGVK(t.Context(), configMaps, adapter.Handler(r), owned, watched,
		dynamiccontroller.WithNamespaces(f.namespace), dynamiccontroller.WithConcurrency(1),
		dynamiccontroller.WithLabelSelector(labels.SelectorFromSet(labels.Set{"team": "red"})),
		dynamiccontroller.WithPredicate(adapter.Predicate[corev1.ConfigMap](predicate.ResourceVersionChangedPredicate{}))))
	f.run()

	red := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "red", Labels: map[string]string{"team": "red"}},
		Data:       map[string]string{"members": "ada grace"},
	}
	f.noError(f.admin.Create(t.Context(), red))
	for _, name := range []string{"ada", "grace"} {
		testkit.Eventually(f, time.Minute, func() error { return f.controlled(name, red, "") })
	}

	// A deleted child is recreated, and a child that is no longer desired is deleted.
	ada := &corev1.ServiceAccount{}
	f.noError(f.admin.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "ada"}, ada))
	f.noError(f.admin.Delete(t.Context(), ada))
	testkit.Eventually(f, time.Minute, func() error { return f.controlled("ada", red, ada.UID) })
	red.Data["members"] = "ada"
	f.noError(f.admin.Patch(t.Context(), red, client.RawPatch(types.MergePatchType, []byte(`{"data":{"members":"ada"}}`))))
	testkit.Eventually(f, time.Minute, func() error {
		err := f.admin.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "grace"}, &corev1.ServiceAccount{})
		if err == nil {
			return errors.New("grace still exists")
		}
		return client.IgnoreNotFound(err)
	})

	// A change to the Namespace reconciles the team.
	f.noError(f.admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"greeting":"hello"}}}`))))
	testkit.Eventually(f, time.Minute, func() error {
		now := &corev1.ConfigMap{}
		if err := f.admin.Get(t.Context(), client.ObjectKeyFromObject(red), now); err != nil {
			return err
		}
		if got := now.Annotations["greeting"]; got != "hello" {
			return fmt.Errorf("the greeting is %q", got)
		}
		return nil
	})
	if reads := f.takeReads(); len(reads) != 0 {
		t.Errorf("the reconciler sent the reads %q, want none", reads)
	}

	// The last successful call has requeued the object with a delay. A terminal error parks it.
	testkit.Eventually(f, time.Minute, func() error { return f.status(1, 0) })
	f.noError(f.admin.Patch(t.Context(), red, client.RawPatch(types.MergePatchType, []byte(`{"data":{"members":""}}`))))
	testkit.Eventually(f, time.Minute, func() error { return f.status(0, 1) })
}

// controlled returns nil if the owner controls the ServiceAccount and the ServiceAccount's UID differs from the given
// one.
func (f *fixture) controlled(name string, owner client.Object, other types.UID) error {
	account := &corev1.ServiceAccount{}
	if err := f.admin.Get(f.Context(), client.ObjectKey{Namespace: f.namespace, Name: name}, account); err != nil {
		return err
	}
	if !metav1.IsControlledBy(account, owner) || account.UID == other {
		return fmt.Errorf("%s has the UID %s and the owners %v", name, account.UID, account.OwnerReferences)
	}
	return nil
}

// status returns nil if the numbers of delayed and parked objects match the given values.
func (f *fixture) status(delayed, parked int) error {
	if s := f.engine.Status()[0]; s.Delayed != delayed || s.Parked != parked {
		return fmt.Errorf("%d objects are delayed and %d parked, want %d and %d", s.Delayed, s.Parked, delayed, parked)
	}
	return nil
}

func TestClient_ReadsFromCaches(t *testing.T) {
	f := newFixture(t)
	none := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	inNamespace := dynamiccontroller.WithNamespaces(f.namespace)
	f.noError(f.engine.StartServingGVK(t.Context(), configMaps, none, inNamespace))
	f.noError(f.engine.StartServingGVK(t.Context(), serviceAccounts, none, inNamespace,
		dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)))
	f.noError(f.engine.StartServingGVK(t.Context(), namespaces, none))
	labelled := metav1.ObjectMeta{Namespace: f.namespace, Name: "first", Labels: map[string]string{"a": "b"}}
	data := map[string]string{"key": "value"}
	f.noError(f.admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: labelled, Data: data}))
	f.noError(f.admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: labelled}))
	f.noError(f.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: labelled}))
	c := adapter.NewClient(must(client.New(f.config, client.Options{})), f.engine.Lister)
	err := c.Get(t.Context(), client.ObjectKey{Name: "first"}, &corev1.ConfigMap{})
	if !errors.Is(err, dynamiccontroller.ErrNotSynced) {
		t.Errorf("got the error %v before the sync, want ErrNotSynced", err)
	}
	f.run()
	for _, gvr := range []schema.GroupVersionResource{configMaps, serviceAccounts, namespaces} {
		f.noError(f.engine.WaitForGVRSync(t.Context(), gvr))
	}

	gvk := corev1.SchemeGroupVersion.WithKind
	untyped, untypedList := &unstructured.Unstructured{}, &unstructured.UnstructuredList{}
	untyped.SetGroupVersionKind(gvk("ConfigMap"))
	untypedList.SetGroupVersionKind(gvk("ConfigMapList"))
	partial, partialList := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}
	partial.SetGroupVersionKind(gvk("ServiceAccount"))
	partialList.SetGroupVersionKind(gvk("ServiceAccountList"))
	ofWhole, ofWholeList := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}
	ofWhole.SetGroupVersionKind(gvk("ConfigMap"))
	ofWholeList.SetGroupVersionKind(gvk("ConfigMapList"))
	matching, other := client.MatchingLabels{"a": "b"}, client.MatchingLabels{"a": "c"}
	key, in := client.ObjectKey{Namespace: f.namespace, Name: "first"}, client.InNamespace(f.namespace)
	get := func(key client.ObjectKey, into client.Object) func() (string, error) {
		return func() (string, error) {
			err := c.Get(t.Context(), key, into)
			return into.GetObjectKind().GroupVersionKind().Kind + " " + into.GetName(), err
		}
	}
	list := func(into client.ObjectList, opts ...client.ListOption) func() (string, error) {
		return func() (string, error) {
			err := c.List(t.Context(), into, opts...)
			return describe(into), err
		}
	}
	stale := &corev1.ConfigMap{Data: map[string]string{"stale": "x"}}
	byName := client.MatchingFields{"metadata.name": "first"}
	self := client.ObjectKey{Namespace: "ignored", Name: f.namespace}
	for name, test := range map[string]struct {
		read func() (string, error)
		want string
		live bool
	}{
		"a typed object":                      {read: get(key, stale), want: "ConfigMap first"},
		"an unstructured object":              {read: get(key, untyped), want: "ConfigMap first"},
		"metadata":                            {read: get(key, partial), want: "ServiceAccount first"},
		"metadata of a whole object":          {read: get(key, ofWhole), want: "ConfigMap first"},
		"a list of metadata of whole objects": {read: list(ofWholeList, in, matching), want: "first"},
		"a cluster-scoped object":             {read: get(self, &corev1.Namespace{}), want: "Namespace " + f.namespace},
		"a whole object, cached as metadata":  {read: get(key, &corev1.ServiceAccount{}), want: " first", live: true},
		"an object of an unserved type":       {read: get(key, &corev1.Secret{}), want: " first", live: true},
		"a typed list":                        {read: list(&corev1.ConfigMapList{}, in, matching), want: "first"},
		"a list that matches nothing":         {read: list(&corev1.ConfigMapList{}, in, other), want: ""},
		"an unstructured list":                {read: list(untypedList, in, matching), want: "first"},
		"a list of metadata":                  {read: list(partialList, in, matching), want: "first"},
		"a whole list, cached as metadata": {
			read: list(&corev1.ServiceAccountList{}, in, matching), want: "first", live: true,
		},
		"a list of cluster-scoped objects in a namespace": {
			read: list(&corev1.NamespaceList{}, in, client.MatchingLabels{corev1.LabelMetadataName: f.namespace}),
			want: f.namespace,
		},
		"a list with a field selector": {read: list(&corev1.ConfigMapList{}, in, byName), want: "first", live: true},
		"a list with a limit": {
			read: list(&corev1.ConfigMapList{}, in, matching, client.Limit(1)), want: "first", live: true,
		},
		"a list of an unserved type": {read: list(&corev1.SecretList{}, in), want: "first", live: true},
	} {
		t.Run(name, func(t *testing.T) {
			f.takeReads()
			got, err := test.read()
			if err != nil || got != test.want {
				t.Errorf("got %q and the error %v, want %q", got, err, test.want)
			}
			if reads := f.takeReads(); len(reads) > 0 != test.live {
				t.Errorf("sent the reads %q, want some: %t", reads, test.live)
			}
		})
	}

	read := &corev1.ConfigMap{Data: map[string]string{"stale": "x"}}
	f.noError(c.Get(t.Context(), key, read))
	if len(read.Data) != 1 || read.Data["key"] != "value" {
		t.Errorf("got the data %v, want only the cached data", read.Data)
	}
	unknown := client.ObjectKey{Namespace: f.namespace, Name: "unknown"}
	if err := c.Get(t.Context(), unknown, read); !apierrors.IsNotFound(err) {
		t.Errorf("got the error %v for an unknown object, want NotFound", err)
	}
}

// describe returns the names of the items of a list.
func describe(list client.ObjectList) string {
	var names []string
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		names = append(names, item.(metav1.Object).GetName())
		return nil
	})
	return strings.Join(names, " ")
}

// The caches of other shards are empty, so their types are read from the API server.
func TestClient_ReadsTypesOfOtherShardsFromTheServer(t *testing.T) {
	f := newFixture(t)
	none := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	f.noError(f.engine.StartServingGVK(t.Context(), configMaps, none, dynamiccontroller.WithNamespaces(f.namespace)))
	key := client.ObjectKey{Namespace: f.namespace, Name: "first"}
	f.noError(f.admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name,
	}}))
	c := adapter.NewClient(must(client.New(f.config, client.Options{})), f.engine.Lister)
	read := func() (fromServer int) {
		f.takeReads()
		list := &corev1.ConfigMapList{}
		f.noError(c.Get(t.Context(), key, &corev1.ConfigMap{}))
		f.noError(c.List(t.Context(), list, client.InNamespace(f.namespace)))
		if len(list.Items) != 1 {
			t.Errorf("the list contains %d ConfigMaps, want 1", len(list.Items))
		}
		return len(f.takeReads())
	}
	const shards = 2
	for index := range shards { // the type is in one of them
		ctx, cancel := context.WithCancel(dynamiccontroller.WithShard(t.Context(), index, shards))
		ended := make(chan error, 1)
		go func() { ended <- f.engine.RunWatches(ctx) }()
		testkit.Eventually(f, time.Minute, func() error {
			if !f.engine.Watches().HasSynced() {
				return errors.New("the watches of the shard have not synced")
			}
			return nil
		})
		want := 0
		if must(f.engine.TypeStatusOf(configMaps)).OtherShard {
			want = 2
		}
		if got := read(); got != want {
			t.Errorf("with shard %d, %d requests read from the API server, want %d", index, got, want)
		}
		cancel()
		f.noError(<-ended)
	}
}

// TestClient_RefusedWriteInterruptsReconcile checks that a write refused by the fence interrupts a reconcile and does
// not count as a failure.
func TestClient_RefusedWriteInterruptsReconcile(t *testing.T) {
	f := newFixture(t)
	options := replica.Options{LeaseName: "adapter", LeaseNamespace: f.namespace}
	standby := must(replica.New(logr.Discard(), f.config, options))
	c := adapter.NewClient(must(client.New(standby.FencedConfig(), client.Options{})), f.engine.Lister)
	err := adapter.Handler(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		if err := c.Get(ctx, client.ObjectKey{Name: r.Namespace}, &corev1.Namespace{}); err != nil {
			t.Error(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}
		return reconcile.Result{}, c.Create(ctx, secret)
	}))(t.Context(), dynamiccontroller.ObjectIdentifiers{GVR: secrets, NamespacedKey: f.namespace + "/first"})
	var interrupted dynamiccontroller.Interrupted
	if !errors.Is(err, replica.ErrNotLeading) || !errors.As(err, &interrupted) || !interrupted.Interrupted() {
		t.Errorf("got the error %v, want ErrNotLeading, marked as interrupted", err)
	}
}
