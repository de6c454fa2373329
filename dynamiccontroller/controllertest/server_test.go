package controllertest_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

var first = dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/first"}

func TestCreate_SetsMetadataAndIgnoresStatus(t *testing.T) {
	server := newServer()
	sent := with(widget("first", 1), "status.ready", true)
	sent.SetUID("chosen")
	sent.SetGeneration(7)
	sent.SetFinalizers([]string{"example.com/cleanup"})
	created := must(in(server, widgets).Create(t.Context(), sent, create))
	if created.GetUID() == "" || created.GetUID() == "chosen" || created.GetResourceVersion() == "" ||
		created.GetGeneration() != 1 || created.GetCreationTimestamp().Time.IsZero() || len(created.GetManagedFields()) != 1 {
		t.Errorf("got metadata %v", created.Object["metadata"])
	}
	if created.Object["status"] != nil {
		t.Errorf("got status %v, want none", created.Object["status"])
	}
	if !slices.Equal(created.GetFinalizers(), sent.GetFinalizers()) {
		t.Errorf("got finalizers %v", created.GetFinalizers())
	}
	if diff := cmp.Diff(created, server.Get(first)); diff != "" {
		t.Errorf("the stored object differs: %s", diff)
	}
	generated := widget("", 1)
	generated.SetGenerateName("first-")
	a := must(in(server, widgets).Create(t.Context(), generated, create))
	b := must(in(server, widgets).Create(t.Context(), generated, create))
	if !strings.HasPrefix(a.GetName(), "first-") || a.GetName() == b.GetName() || a.GetUID() == b.GetUID() {
		t.Errorf("generated names %s and %s", a.GetName(), b.GetName())
	}
}

// hasCode returns a function that reports whether an error has an HTTP status.
func hasCode(code int32) func(error) bool {
	return func(err error) bool {
		var status apierrors.APIStatus
		return errors.As(err, &status) && status.Status().Code == code
	}
}

func TestRequests_AreRejectedLikeByAnAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		request func(ctx context.Context, server *controllertest.Server) error
		reason  func(error) bool
	}{
		"create an existing object": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Create(ctx, widget("first", 2), create)
			return err
		}, apierrors.IsAlreadyExists},
		"create with a resourceVersion": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Create(ctx, with(widget("second", 2), "metadata.resourceVersion", "1"), create)
			return err
		}, hasCode(http.StatusInternalServerError)},
		"create without a name": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Create(ctx, widget("", 2), create)
			return err
		}, apierrors.IsInvalid},
		"create another kind": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, configMaps).Create(ctx, widget("second", 2), create)
			return err
		}, apierrors.IsBadRequest},
		"create in another namespace": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := server.Resource(widgets).Namespace("other").Create(ctx, widget("second", 2), create)
			return err
		}, apierrors.IsBadRequest},
		"create a namespaced object without a namespace": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := server.Resource(widgets).Create(ctx, widget("second", 2), create)
			return err
		}, apierrors.IsNotFound},
		"apply without a name": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Apply(ctx, "", widget("", 1), metav1.ApplyOptions{FieldManager: "me"})
			return err
		}, func(err error) bool { return err != nil }},
		"update a missing object": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Update(ctx, with(widget("second", 2), "metadata.resourceVersion", "1"), update)
			return err
		}, apierrors.IsNotFound},
		"update without a resourceVersion": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Update(ctx, widget("first", 2), update)
			return err
		}, apierrors.IsInvalid},
		"update with an old resourceVersion": {func(ctx context.Context, server *controllertest.Server) error {
			old := server.Get(first)
			server.Apply(widget("first", 5))
			_, err := in(server, widgets).Update(ctx, with(old, "spec.size", int64(2)), update)
			return err
		}, apierrors.IsConflict},
		"update with another UID": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Update(ctx, with(server.Get(first), "metadata.uid", "other"), update)
			return err
		}, apierrors.IsConflict},
		"patch with an old resourceVersion": {func(ctx context.Context, server *controllertest.Server) error {
			patch := []byte(`{"metadata":{"resourceVersion":"1"}}`)
			_, err := in(server, widgets).Patch(ctx, "first", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}, apierrors.IsConflict},
		"patch with a failing test": {func(ctx context.Context, server *controllertest.Server) error {
			patch := []byte(`[{"op":"test","path":"/spec/size","value":9}]`)
			_, err := in(server, widgets).Patch(ctx, "first", types.JSONPatchType, patch, metav1.PatchOptions{})
			return err
		}, apierrors.IsInvalid},
		"strategic merge patch": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Patch(ctx, "first", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
			return err
		}, apierrors.IsUnsupportedMediaType},
		"apply without a field manager": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Apply(ctx, "first", widget("first", 1), metav1.ApplyOptions{})
			return err
		}, apierrors.IsInvalid},
		"apply a missing object with a UID": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Apply(ctx, "second", with(widget("second", 1), "metadata.uid", "gone"),
				metav1.ApplyOptions{FieldManager: "me"})
			return err
		}, apierrors.IsConflict},
		"apply a field of another manager": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).Apply(ctx, "first", widget("first", 2), metav1.ApplyOptions{FieldManager: "me"})
			return err
		}, apierrors.IsConflict},
		"delete a missing object": {func(ctx context.Context, server *controllertest.Server) error {
			return in(server, widgets).Delete(ctx, "second", metav1.DeleteOptions{})
		}, apierrors.IsNotFound},
		"delete with another UID": {func(ctx context.Context, server *controllertest.Server) error {
			preconditions := &metav1.Preconditions{UID: ptr.To(types.UID("other"))}
			return in(server, widgets).Delete(ctx, "first", metav1.DeleteOptions{Preconditions: preconditions})
		}, apierrors.IsConflict},
		"delete with an old resourceVersion": {func(ctx context.Context, server *controllertest.Server) error {
			preconditions := &metav1.Preconditions{ResourceVersion: ptr.To("1")}
			return in(server, widgets).Delete(ctx, "first", metav1.DeleteOptions{Preconditions: preconditions})
		}, apierrors.IsConflict},
		"list at a resourceVersion of the future": {func(ctx context.Context, server *controllertest.Server) error {
			_, err := in(server, widgets).List(ctx, metav1.ListOptions{ResourceVersion: "1000"})
			return err
		}, apierrors.IsTimeout},
		"a request with a cancelled context": {func(ctx context.Context, server *controllertest.Server) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			_, err := in(server, widgets).Get(ctx, "first", metav1.GetOptions{})
			return err
		}, func(err error) bool { return errors.Is(err, context.Canceled) }},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer()
			server.Apply(widget("first", 1))
			if err := test.request(t.Context(), server); !test.reason(err) {
				t.Errorf("got error %v", err)
			}
			if writes := server.TakeWrites(); len(writes) > 0 {
				t.Errorf("got writes %q", writes)
			}
		})
	}
}

// The NotFound for a type that is not served has no name, so that it differs from the one for a missing object.
func TestRequests_ForTypesThatAreNotServed(t *testing.T) {
	server := newServer()
	_, missing := in(server, widgets).Get(t.Context(), "first", metav1.GetOptions{})
	_, unserved := in(server, gadgets).Get(t.Context(), "first", metav1.GetOptions{})
	_, list := in(server, gadgets).List(t.Context(), metav1.ListOptions{})
	_, watch := in(server, gadgets).Watch(t.Context(), metav1.ListOptions{})
	for _, test := range []struct {
		err  error
		name string
	}{{missing, "first"}, {unserved, ""}, {list, ""}, {watch, ""}} {
		var status apierrors.APIStatus
		if !apierrors.IsNotFound(test.err) || !errors.As(test.err, &status) || status.Status().Details.Name != test.name {
			t.Errorf("got error %#v, want a NotFound for %q", test.err, test.name)
		}
	}
}

func TestUpdate_SeparatesSpecAndStatus(t *testing.T) {
	server := newServer()
	client := in(server, widgets)
	created := must(client.Create(t.Context(), widget("first", 1), create))
	both := with(with(created, "spec.size", int64(2)), "status.ready", true)

	spec := must(client.Update(t.Context(), both, update))
	if spec.GetGeneration() != 2 || field(spec, "spec.size") != int64(2) || field(spec, "status.ready") != nil {
		t.Errorf("after Update: %v", spec.Object)
	}
	both = with(with(spec, "spec.size", int64(3)), "status.ready", true)
	status := must(client.UpdateStatus(t.Context(), both, update))
	if status.GetGeneration() != 2 || field(status, "spec.size") != int64(2) || field(status, "status.ready") != true {
		t.Errorf("after UpdateStatus: %v", status.Object)
	}
	label := must(client.Update(t.Context(), with(status, "metadata.labels", map[string]any{"a": "b"}), update))
	if label.GetGeneration() != 2 || label.GetResourceVersion() == status.GetResourceVersion() ||
		field(label, "status.ready") != true {
		t.Errorf("after a change to the labels: %v", label.Object)
	}
	if same := must(client.Update(t.Context(), label, update)); same.GetResourceVersion() != label.GetResourceVersion() {
		t.Errorf("resourceVersion %s after an update without changes, want %s", same.GetResourceVersion(),
			label.GetResourceVersion())
	}
	unplaced := label.DeepCopy()
	unplaced.SetNamespace("")
	if same := must(client.Update(t.Context(), unplaced, update)); same.GetNamespace() != label.GetNamespace() {
		t.Errorf("the namespace is %q, want that of the request", same.GetNamespace())
	}
}

func TestPatch_ChangesOnlyWhatItContains(t *testing.T) {
	server := newServer()
	server.Apply(widget("first", 1))
	merged := must(in(server, widgets).Patch(t.Context(), "first", types.MergePatchType,
		[]byte(`{"spec":{"size":null,"color":"red"},"status":{"ready":true}}`), metav1.PatchOptions{}))
	spec := map[string]any{"color": "red"}
	if cmp.Diff(spec, merged.Object["spec"]) != "" || merged.Object["status"] != nil {
		t.Errorf("after a merge patch: %v", merged.Object)
	}
	status := must(in(server, widgets).Patch(t.Context(), "first", types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/status","value":{"ready":true}}]`), metav1.PatchOptions{}, "status"))
	if field(status, "status.ready") != true || status.GetGeneration() != merged.GetGeneration() {
		t.Errorf("after a patch of the status: %v", status.Object)
	}
}

func TestApply_OwnsFields(t *testing.T) {
	server := newServer()
	client := in(server, widgets)
	mine, yours := metav1.ApplyOptions{FieldManager: "me"}, metav1.ApplyOptions{FieldManager: "you", Force: true}
	created := must(client.Apply(t.Context(), "first", with(widget("first", 1), "spec.color", "red"), mine))
	if created.GetGeneration() != 1 || created.GetUID() == "" {
		t.Errorf("created %v", created.Object)
	}
	same := must(client.Apply(t.Context(), "first", with(widget("first", 1), "spec.color", "red"), mine))
	if same.GetResourceVersion() != created.GetResourceVersion() {
		t.Error("an apply without changes has changed the resourceVersion")
	}
	forced := must(client.Apply(t.Context(), "first", widget("first", 2), yours))
	if field(forced, "spec.size") != int64(2) || field(forced, "spec.color") != "red" || forced.GetGeneration() != 2 {
		t.Errorf("after a forced apply of spec.size: %v", forced.Object)
	}
	if _, err := client.Apply(t.Context(), "first", widget("first", 1), mine); !apierrors.IsConflict(err) {
		t.Errorf("got error %v, want a conflict about spec.size", err)
	}
	empty := fromYAML(
		"{apiVersion: example.com/v1, kind: Widget, metadata: {name: first, namespace: default}}")
	released := must(client.Apply(t.Context(), "first", empty, mine))
	if field(released, "spec.size") != int64(2) || field(released, "spec.color") != nil {
		t.Errorf("after an apply without fields: %v", released.Object)
	}
	status := with(with(empty, "status.ready", true), "spec.size", int64(9))
	applied := must(client.ApplyStatus(t.Context(), "first", status, mine))
	if field(applied, "status.ready") != true || field(applied, "spec.size") != int64(2) || applied.GetGeneration() != 3 {
		t.Errorf("after an apply of the status: %v", applied.Object)
	}
	if again := must(client.Apply(t.Context(), "first", empty, mine)); field(again, "status.ready") != true {
		t.Errorf("an apply of the object has changed the status: %v", again.Object)
	}
}

func TestDelete_WaitsForFinalizers(t *testing.T) {
	server := newServer()
	client := in(server, widgets)
	object := widget("first", 1)
	object.SetFinalizers([]string{"example.com/cleanup"})
	server.Apply(object)
	for range 2 {
		if err := client.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	deleting := server.Get(first)
	if deleting.GetDeletionTimestamp() == nil || deleting.GetGeneration() != 2 {
		t.Errorf("got metadata %v", deleting.Object["metadata"])
	}
	added := deleting.DeepCopy()
	added.SetFinalizers([]string{"example.com/cleanup", "example.com/late"})
	if _, err := client.Update(t.Context(), added, update); !apierrors.IsInvalid(err) {
		t.Errorf("got error %v for a finalizer that is added to a deleted object", err)
	}
	deleting.SetFinalizers(nil)
	must(client.Update(t.Context(), deleting, update))
	if object := server.Get(first); object != nil {
		t.Errorf("the object still exists: %v", object.Object)
	}
	again := must(client.Create(t.Context(), widget("first", 1), create))
	if again.GetUID() == deleting.GetUID() {
		t.Error("an object that was created again has the old UID")
	}
	server.Delete(first)
	if object := server.Get(first); object != nil {
		t.Errorf("the object still exists: %v", object.Object)
	}
}

func TestDryRun_ChangesNothing(t *testing.T) {
	server := newServer()
	server.Apply(widget("first", 1))
	before := server.Get(first)
	dry := []string{metav1.DryRunAll}
	client := in(server, widgets)
	must(client.Create(t.Context(), widget("second", 1), metav1.CreateOptions{DryRun: dry}))
	updated := must(client.Update(t.Context(), with(before, "spec.size", int64(2)), metav1.UpdateOptions{DryRun: dry}))
	if field(updated, "spec.size") != int64(2) {
		t.Errorf("a dry run returned %v", updated.Object)
	}
	must(client.Patch(t.Context(), "first", types.MergePatchType, []byte(`{"spec":{"size":3}}`),
		metav1.PatchOptions{DryRun: dry}))
	must(client.Apply(t.Context(), "first", widget("first", 4),
		metav1.ApplyOptions{DryRun: dry, Force: true, FieldManager: "me"}))
	if err := client.Delete(t.Context(), "first", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{DryRun: dry}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("dry runs count as writes: %q", writes)
	}
	list := must(client.List(t.Context(), metav1.ListOptions{}))
	if len(list.Items) != 1 || cmp.Diff(*before, list.Items[0]) != "" ||
		list.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("got %v, want only %v", list.Items, before)
	}
}

func TestList_SelectsObjects(t *testing.T) {
	server := newServer()
	red, other := with(widget("red", 1), "metadata.labels", map[string]any{"color": "red"}), widget("blue", 1)
	other.SetNamespace("other")
	server.Apply(red)
	server.Apply(widget("plain", 1))
	server.Apply(other)
	for name, test := range map[string]struct {
		namespace string
		opts      metav1.ListOptions
		want      []string
	}{
		"all namespaces": {"", metav1.ListOptions{}, []string{"plain", "red", "blue"}},
		"a namespace":    {"default", metav1.ListOptions{}, []string{"plain", "red"}},
		"a label":        {"", metav1.ListOptions{LabelSelector: "color=red"}, []string{"red"}},
		"a name":         {"", metav1.ListOptions{FieldSelector: "metadata.name=blue"}, []string{"blue"}},
	} {
		list := must(server.Resource(widgets).Namespace(test.namespace).List(t.Context(), test.opts))
		var got []string
		for _, item := range list.Items {
			got = append(got, item.GetName())
		}
		if !slices.Equal(got, test.want) || list.GetKind() != "WidgetList" {
			t.Errorf("%s: got %s %q, want %q", name, list.GetKind(), got, test.want)
		}
	}
	_, err := in(server, widgets).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=1"})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("got error %v for an unknown field label", err)
	}
	if err := in(server, widgets).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if list := must(server.Resource(widgets).List(t.Context(), metav1.ListOptions{})); len(list.Items) != 1 {
		t.Errorf("%d objects are left, want only that of the other namespace", len(list.Items))
	}
}

func TestWatch_DeliversEveryChangeAfterTheList(t *testing.T) {
	server := newServer()
	client := in(server, widgets)
	server.Apply(widget("first", 1))
	list := must(client.List(t.Context(), metav1.ListOptions{}))
	server.Apply(widget("first", 2))
	red := with(widget("second", 1), "metadata.labels", map[string]any{"color": "red"})
	server.Apply(red)
	changes := must(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))
	existing := must(client.Watch(t.Context(), metav1.ListOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	onlyRed := must(client.Watch(ctx, metav1.ListOptions{LabelSelector: "color=red"}))
	server.Apply(widget("second", 1)) // removes the label
	server.Delete(first)

	for name, test := range map[string]struct {
		got  func() (string, bool)
		want []string
	}{
		"changes":  {next(changes), []string{"MODIFIED first", "ADDED second", "MODIFIED second", "DELETED first"}},
		"existing": {next(existing), []string{"ADDED first", "ADDED second", "MODIFIED second", "DELETED first"}},
		"only red": {next(onlyRed), []string{"ADDED second", "DELETED second"}},
	} {
		for _, want := range test.want {
			if got, _ := test.got(); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	}
	cancel()
	if got, open := next(onlyRed)(); open {
		t.Errorf("got %s from a watch whose context was cancelled", got)
	}
	changes.Stop()
	existing.Stop()
}

func TestReactor_MakesRequestsFail(t *testing.T) {
	server := newServer()
	server.Apply(widget("first", 1))
	denied := apierrors.NewForbidden(widgets.GroupResource(), "first", errors.New("on purpose"))
	deny := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, denied }
	server.PrependReactor("patch", "widgets", deny)
	server.PrependReactor("list", "widgets", deny)
	server.PrependReactor("watch", "widgets", deny)
	_, err := in(server, widgets).Apply(t.Context(), "first", widget("first", 1), metav1.ApplyOptions{FieldManager: "me"})
	_, listErr := in(server, widgets).List(t.Context(), metav1.ListOptions{})
	_, watchErr := server.MetadataClient().Resource(widgets).Watch(t.Context(), metav1.ListOptions{})
	for _, err := range []error{err, listErr, watchErr} {
		if !errors.Is(err, denied) {
			t.Errorf("got error %v, want that of the reactor", err)
		}
	}
	must(in(server, widgets).Get(t.Context(), "first", metav1.GetOptions{}))
	var verbs []string
	for _, action := range server.Actions() {
		verbs = append(verbs, action.GetVerb())
	}
	if want := []string{"patch", "list", "watch", "get"}; !slices.Equal(verbs, want) {
		t.Errorf("got actions %q, want %q", verbs, want)
	}
}

func TestTakeWrites_ReturnsTheSuccessfulWritesOfClients(t *testing.T) {
	server := newServer()
	server.Apply(widget("first", 1))
	mine := metav1.ApplyOptions{FieldManager: "me", Force: true}
	must(in(server, widgets).Update(t.Context(), with(server.Get(first), "status.ready", true), update, "status"))
	for range 2 { // the second one changes nothing
		must(in(server, configMaps).Apply(t.Context(), "second", configMap("second", ""), mine))
	}
	must(in(server, configMaps).Get(t.Context(), "second", metav1.GetOptions{}))
	if _, err := in(server, configMaps).Create(t.Context(), configMap("second", ""), create); err == nil {
		t.Error("an existing object was created")
	}
	if err := in(server, widgets).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	want := []string{
		"update status of widgets first", "apply configmaps second", "apply configmaps second", "delete widgets first",
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, want) {
		t.Errorf("got writes %q, want %q", writes, want)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("got writes %q again", writes)
	}
}

// The client for metadata returns the objects that the server stores, reduced to their metadata.
func TestMetadataClient_ReturnsTheSameObjects(t *testing.T) {
	server := newServer()
	server.Apply(widget("first", 1))
	client := server.MetadataClient().Resource(widgets).Namespace("default")
	stored := func() *metav1.PartialObjectMetadata { return meta.AsPartialObjectMetadata(server.Get(first)) }
	if diff := cmp.Diff(stored(), must(client.Get(t.Context(), "first", metav1.GetOptions{}))); diff != "" {
		t.Errorf("Get: %s", diff)
	}
	list := must(client.List(t.Context(), metav1.ListOptions{}))
	if len(list.Items) != 1 || cmp.Diff(*stored(), list.Items[0]) != "" {
		t.Errorf("List returned %v", list.Items)
	}
	w := must(client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))
	defer w.Stop()
	patched := must(client.Patch(t.Context(), "first", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))
	if patched.Labels["a"] != "b" || cmp.Diff(stored(), patched) != "" {
		t.Errorf("Patch returned %v", patched)
	}
	e := <-w.ResultChan()
	if e.Type != watch.Modified || cmp.Diff(runtime.Object(patched), e.Object) != "" {
		t.Errorf("got event %v", e)
	}
	if err := client.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.Get(t.Context(), "first", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v after Delete", err)
	}
}

func TestAdd_KeepsTheStateOfAnObject(t *testing.T) {
	server := newServer()
	object := with(widget("first", 1), "status.ready", true)
	object.SetUID("chosen")
	object.SetGeneration(7)
	server.Add(object)
	got := server.Get(first)
	if got.GetUID() != "chosen" || got.GetGeneration() != 7 || field(got, "status.ready") != true ||
		got.GetResourceVersion() == "" {
		t.Errorf("got %v", got.Object)
	}
	server.Apply(widget("first", 2))
	if got = server.Get(first); got.GetGeneration() != 8 || field(got, "status.ready") != true {
		t.Errorf("after Apply: %v", got.Object)
	}
	server.Apply(with(widget("first", 2), "status.ready", false))
	if got = server.Get(first); got.GetGeneration() != 8 || field(got, "status.ready") != false {
		t.Errorf("after Apply with a status: %v", got.Object)
	}
}

func TestServer_PanicsForMistakesInTheTest(t *testing.T) {
	deleted := widget("first", 1)
	deleted.SetDeletionTimestamp(ptr.To(metav1.Now()))
	apply := func(manifest string) func(*controllertest.Server) {
		return func(server *controllertest.Server) { server.Apply(fromYAML(manifest)) }
	}
	for name, test := range map[string]struct {
		mistake func(server *controllertest.Server)
		want    string
	}{
		"apply a type that is not served": {
			apply("{apiVersion: example.com/v1, kind: Gadget, metadata: {name: first}}"), "pass its type to NewServer"},
		"apply without a namespace": {
			apply("{apiVersion: example.com/v1, kind: Widget, metadata: {name: first}}"), `has the namespace ""`},
		"apply with a namespace": {
			apply("{apiVersion: v1, kind: Namespace, metadata: {name: a, namespace: b}}"), `has the namespace "b"`},
		"apply without a name": {
			apply("{apiVersion: example.com/v1, kind: Widget, metadata: {namespace: b}}"), "metadata.name"},
		"add without a name": {func(server *controllertest.Server) { server.Add(widget("", 1)) }, "metadata.name"},
		"add an object that is deleted and has no finalizer": {
			func(server *controllertest.Server) { server.Add(deleted) }, "add a finalizer"},
		"get an object of a type that is not served": {func(server *controllertest.Server) {
			server.Get(dynamiccontroller.ObjectIdentifiers{GVR: gadgets, NamespacedKey: "default/first"})
		}, "pass its type to NewServer"},
		"delete a missing object": {func(server *controllertest.Server) { server.Delete(first) }, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer()
			if got := panicOf(func() { test.mistake(server) }); !strings.Contains(got, test.want) {
				t.Errorf("panicked with %q, want a message that contains %q", got, test.want)
			}
			if list := must(server.Resource(widgets).List(t.Context(), metav1.ListOptions{})); len(list.Items) > 0 {
				t.Errorf("the server has stored %v", list.Items)
			}
		})
	}
}

func TestRESTMapper_MapsTheTypesOfTheServer(t *testing.T) {
	mapper := newServer().RESTMapper()
	for kind, want := range map[schema.GroupKind]struct {
		resource schema.GroupVersionResource
		scope    string
	}{
		{Group: "example.com", Kind: "Widget"}: {widgets, "namespace"},
		{Kind: "Namespace"}:                    {namespaces, "root"},
	} {
		mapping := must(mapper.RESTMapping(kind))
		if mapping.Resource != want.resource || string(mapping.Scope.Name()) != want.scope {
			t.Errorf("%s is mapped to %s, scope %s", kind, mapping.Resource, mapping.Scope.Name())
		}
	}
	if _, err := mapper.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Gadget"}); err == nil {
		t.Error("the mapper maps a kind that is not served")
	}
}
