package apicases

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// Case is an operation: a sequence of requests whose answers are compared.
type Case struct {
	Name string // a sentence
	run  func(*session)
}

// Server is an API server with types for the cases. It must serve Things, which are namespaced custom resources of the
// kind Thing, with the subresource status and a schema that preserves unknown fields. It must also serve the built-in
// types ConfigMap, Namespace and Role (rbac.authorization.k8s.io/v1).
type Server struct {
	Client    dynamic.Interface
	Things    schema.GroupVersionResource
	Namespace string // must exist, and contain no objects except those of the cases
}

// Types are the built-in types that the cases use.
var (
	ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	Roles      = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
)

// Answers performs the requests of a case and returns their answers. It first deletes the objects of earlier cases.
func (s Server) Answers(ctx context.Context, c Case) ([]string, error) {
	run := &session{ctx: ctx, server: s, numbers: map[string]int{}}
	run.things = run.resource(s.Things, "Thing", s.Namespace)
	run.configMaps = run.resource(ConfigMaps, "ConfigMap", s.Namespace)
	run.namespaces = run.resource(Namespaces, "Namespace", "")
	run.roles = run.resource(Roles, "Role", s.Namespace)
	for _, r := range []resource{run.things, run.configMaps} {
		if err := r.clear(); err != nil {
			return nil, fmt.Errorf("delete the %s of earlier cases: %w", r.gvr.Resource, err)
		}
	}
	c.run(run)
	for _, r := range []resource{run.things, run.configMaps} {
		stored, err := r.all()
		if err != nil {
			return nil, err
		}
		var shown []string
		for i := range stored {
			shown = append(shown, run.show(&stored[i]))
		}
		slices.Sort(shown) // generated names are in a random order
		for _, object := range shown {
			run.record("stored", "%s", object)
		}
	}
	return run.answers, ctx.Err()
}

// session is a run of a case.
type session struct {
	ctx        context.Context // that of Answers, which a session does not outlive
	server     Server
	things     resource
	configMaps resource
	namespaces resource
	roles      resource
	answers    []string
	numbers    map[string]int // of UIDs and resourceVersions, in the order in which they appeared
}

func (s *session) record(what, format string, args ...any) {
	answer := strings.ReplaceAll(fmt.Sprintf(format, args...), s.server.Namespace, "NAMESPACE")
	s.answers = append(s.answers, what+": "+strings.ReplaceAll(answer, s.server.Things.Group, "GROUP"))
}

// result records the answer to a request, and returns the object.
func (s *session) result(what string, object *unstructured.Unstructured, err error) *unstructured.Unstructured {
	if err != nil {
		s.record(what, "%s", showError(err))
		return nil
	}
	s.record(what, "%s", s.show(object))
	return object
}

// outcome records whether a request has succeeded.
func (s *session) outcome(what string, err error) {
	if err != nil {
		s.record(what, "%s", showError(err))
		return
	}
	s.record(what, "ok")
}

func showError(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "an error of the client"
	}
	text := fmt.Sprintf("%d %s", status.Status().Code, cmp.Or(status.Status().Reason, "without a reason"))
	var causes []string
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			causes = append(causes, fmt.Sprintf("%s %s", cause.Type, cause.Field))
		}
	}
	slices.Sort(causes)
	return fmt.Sprintf("%s %s", text, slices.Compact(causes))
}

// show returns an object as JSON, without what differs between two servers that do the same.
func (s *session) show(object *unstructured.Unstructured) string {
	object = object.DeepCopy()
	metadata, _, err := unstructured.NestedMap(object.Object, "metadata")
	if err != nil {
		return err.Error()
	}
	for _, name := range []string{"uid", "resourceVersion"} {
		if value, found := metadata[name]; found {
			metadata[name] = s.number(name, value)
		}
	}
	for _, name := range []string{"creationTimestamp", "deletionTimestamp"} {
		if metadata[name] != nil {
			metadata[name] = "set"
		}
	}
	if base := object.GetGenerateName(); base != "" && len(object.GetName()) >= 5 {
		metadata["name"] = object.GetName()[:len(object.GetName())-5] + "?????"
	}
	if object.GetManagedFields() != nil {
		metadata["managedFields"] = showManagers(object.GetManagedFields())
	}
	object.Object["metadata"] = metadata
	data, err := json.Marshal(object.Object)
	if err != nil {
		return err.Error()
	}
	return shorten(string(data))
}

// shorten replaces long runs of the same character.
func shorten(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		end := i + 1
		for end < len(text) && text[end] == text[i] {
			end++
		}
		if end-i > 20 {
			fmt.Fprintf(&b, "%c{%d}", text[i], end-i)
		} else {
			b.WriteString(text[i:end])
		}
		i = end
	}
	return b.String()
}

func (s *session) number(kind string, value any) string {
	key := fmt.Sprint(kind, value)
	if s.numbers[key] == 0 {
		n := 1
		for k := range s.numbers {
			if strings.HasPrefix(k, kind) {
				n++
			}
		}
		s.numbers[key] = n
	}
	return fmt.Sprintf("%s %d", kind, s.numbers[key])
}

func showManagers(entries []metav1.ManagedFieldsEntry) []any {
	var all []string
	for _, entry := range entries {
		fields := ""
		if entry.FieldsV1 != nil {
			fields = entry.FieldsV1.GetRawString()
		}
		all = append(all, fmt.Sprintf("%s %s %s %s %s", entry.Manager, entry.Operation, entry.Subresource,
			entry.APIVersion, fields))
	}
	slices.Sort(all)
	var shown []any
	for _, entry := range all {
		shown = append(shown, entry)
	}
	return shown
}

// resource sends requests for a type, and records their answers.
type resource struct {
	*session
	gvr       schema.GroupVersionResource
	kind      string
	namespace string
	client    dynamic.ResourceInterface
}

func (s *session) resource(gvr schema.GroupVersionResource, kind, namespace string) resource {
	r := resource{session: s, gvr: gvr, kind: kind, namespace: namespace}
	r.client = s.server.Client.Resource(gvr)
	if namespace != "" {
		r.client = s.server.Client.Resource(gvr).Namespace(namespace)
	}
	return r
}

// object returns the object in a manifest. Its apiVersion, kind and namespace are set unless the manifest contains
// them.
func (r resource) object(manifest string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		panic(fmt.Sprintf("%s: %v", manifest, err))
	}
	if _, found := object.Object["apiVersion"]; !found {
		object.SetAPIVersion(r.gvr.GroupVersion().String())
	}
	if _, found := object.Object["kind"]; !found {
		object.SetKind(r.kind)
	}
	if object.GetNamespace() == "" && r.namespace != "" {
		object.SetNamespace(r.namespace)
	}
	return object
}

// options are those of a request that writes.
type options struct {
	manager    string
	dryRun     []string
	validation string
	sub        []string
	force      bool
}

type option func(*options)

func as(manager string) option { return func(o *options) { o.manager = manager } }

func forced(o *options) { o.force = true }

func dry(o *options) { o.dryRun = []string{metav1.DryRunAll} }

func status(o *options) { o.sub = []string{"status"} }

func sub(name string) option { return func(o *options) { o.sub = []string{name} } }

func with(opts []option) options {
	o := options{manager: "tester"}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

func (r resource) create(manifest string) *unstructured.Unstructured {
	return r.createObject(r.object(manifest))
}

func (r resource) createObject(object *unstructured.Unstructured, opts ...option) *unstructured.Unstructured {
	o := with(opts)
	created, err := r.client.Create(r.ctx, object,
		metav1.CreateOptions{FieldManager: o.manager, DryRun: o.dryRun, FieldValidation: o.validation}, o.sub...)
	return r.result("create", created, err)
}

func (r resource) update(object *unstructured.Unstructured, opts ...option) *unstructured.Unstructured {
	o := with(opts)
	updated, err := r.client.Update(r.ctx, object,
		metav1.UpdateOptions{FieldManager: o.manager, DryRun: o.dryRun, FieldValidation: o.validation}, o.sub...)
	return r.result("update", updated, err)
}

func (r resource) patch(kind types.PatchType, name, data string, opts ...option) *unstructured.Unstructured {
	o := with(opts)
	patched, err := r.client.Patch(r.ctx, name, kind, []byte(data),
		metav1.PatchOptions{FieldManager: o.manager, DryRun: o.dryRun, FieldValidation: o.validation}, o.sub...)
	return r.result("patch", patched, err)
}

func (r resource) merge(name, data string, opts ...option) *unstructured.Unstructured {
	return r.patch(types.MergePatchType, name, data, opts...)
}

func (r resource) json(name, data string, opts ...option) *unstructured.Unstructured {
	return r.patch(types.JSONPatchType, name, data, opts...)
}

// apply applies a manifest as a manager.
func (r resource) apply(manager, manifest string, opts ...option) *unstructured.Unstructured {
	object := r.object(manifest)
	data, err := json.Marshal(object.Object)
	if err != nil {
		panic(err)
	}
	return r.applyRaw(object.GetName(), string(data), append([]option{as(manager)}, opts...)...)
}

// applyRaw applies the body of a request.
func (r resource) applyRaw(name, body string, opts ...option) *unstructured.Unstructured {
	o := with(opts)
	applied, err := r.client.Patch(r.ctx, name, types.ApplyPatchType, []byte(body),
		metav1.PatchOptions{FieldManager: o.manager, DryRun: o.dryRun, Force: &o.force}, o.sub...)
	return r.result("apply", applied, err)
}

// get returns an object without recording an answer, or an empty object if the request fails.
func (r resource) get(name string) *unstructured.Unstructured {
	object, err := r.client.Get(r.ctx, name, metav1.GetOptions{})
	if err != nil {
		return r.object("{metadata: {name: " + name + "}}")
	}
	return object
}

func (r resource) delete(name string, opts metav1.DeleteOptions) {
	r.outcome("delete", r.client.Delete(r.ctx, name, opts))
}

func (r resource) deleteAll(opts metav1.DeleteOptions, list metav1.ListOptions) {
	r.outcome("delete the collection", r.client.DeleteCollection(r.ctx, opts, list))
}

// list records the names of the objects in a list, and whether there are more.
func (r resource) list(opts metav1.ListOptions) *unstructured.UnstructuredList {
	list, err := r.client.List(r.ctx, opts)
	if err != nil {
		r.outcome("list", err)
		return &unstructured.UnstructuredList{}
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	remaining := "unknown"
	if count := list.GetRemainingItemCount(); count != nil {
		remaining = fmt.Sprint(*count)
	}
	r.record("list", "%s %s %v, more: %t, remaining: %s", list.GetAPIVersion(), list.GetKind(), names,
		list.GetContinue() != "", remaining)
	return list
}

// watch records the first n events of a watch.
func (r resource) watch(n int, opts metav1.ListOptions, during func()) {
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	stream, err := r.client.Watch(ctx, opts)
	if err != nil {
		r.outcome("watch", err)
		return
	}
	defer stream.Stop()
	if during != nil {
		during()
	}
	for range n {
		event, open := <-stream.ResultChan()
		switch object := event.Object.(type) {
		case *unstructured.Unstructured:
			r.record("watch", "%s %s", event.Type, r.show(object))
		case *metav1.Status:
			r.record("watch", "%s %s", event.Type, showError(apierrors.FromObject(object)))
		default:
			r.record("watch", "open: %t", open)
			return
		}
	}
}

// gone records whether an object disappears.
func (r resource) gone(name string) {
	for range 300 {
		_, err := r.client.Get(r.ctx, name, metav1.GetOptions{})
		if err != nil {
			r.outcome("get", err)
			return
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	r.record("get", "still exists")
}

// all returns the objects of the cases.
func (r resource) all() ([]unstructured.Unstructured, error) {
	list, err := r.client.List(r.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(object unstructured.Unstructured) bool {
		return object.GetName() == "kube-root-ca.crt"
	}), nil
}

// clear deletes all objects of the cases.
func (r resource) clear() error {
	for {
		objects, err := r.all()
		if err != nil || len(objects) == 0 {
			return err
		}
		for _, object := range objects {
			if len(object.GetFinalizers()) > 0 {
				_, err := r.client.Patch(r.ctx, object.GetName(), types.MergePatchType,
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
			err := r.client.Delete(r.ctx, object.GetName(), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
}

// remove deletes an object of a type whose objects Answers does not delete. It records nothing.
func (r resource) remove(name string) {
	_ = r.client.Delete(r.ctx, name, metav1.DeleteOptions{})
}

// set returns a copy of an object in which a field is set.
func set(object *unstructured.Unstructured, value any, path ...string) *unstructured.Unstructured {
	object = copyOf(object)
	if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
		panic(err)
	}
	return object
}

// unset returns a copy of an object without a field.
func unset(object *unstructured.Unstructured, path ...string) *unstructured.Unstructured {
	object = copyOf(object)
	unstructured.RemoveNestedField(object.Object, path...)
	return object
}

// copyOf returns a copy of an object, which is nil if the request that should have returned it has failed.
func copyOf(object *unstructured.Unstructured) *unstructured.Unstructured {
	if object == nil {
		return &unstructured.Unstructured{Object: map[string]any{}}
	}
	return object.DeepCopy()
}
