package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// childClient is a client that gets and writes the children of an instance as an identity. If the identity was
// rejected, requests return a rejectedError.
//
// The API server, admission webhooks and admission policies quote values in their messages. Messages about objects of
// sensitive resources are replaced as soon as they are received, so that the original messages never reach a status, an
// error or the log. Warnings about such objects are dropped.
type childClient struct {
	dynamic.Interface // client of the identity; nil if it was rejected

	identity  identity.Identity
	rejection *identity.Rejection // why the identity was rejected, or nil
	denials   *identity.Denials
	compiled  *blueprint.Compiled // nil if nothing is applied
	children  []Child

	// budget limits the total size of the responses to get and list requests. If it is nil, there is no limit.
	budget *identity.ResponseBudget
	*requests
}

// requests is what the requests of one reconcile have read and written. Children are applied concurrently.
type requests struct {
	mu sync.Mutex // guards the fields below
	// reads caches the results of get requests. Writing an object removes its entry.
	reads      map[dynamiccontroller.ObjectIdentifiers]read
	changes    []childChange                                // successful writes to record as events
	refused    map[dynamiccontroller.ObjectIdentifiers]bool // children that the API server refuses to change
	denied     []string                                     // children that the identity cannot delete or release
	deniedVerb string                                       // delete or release, for the first of them
	deniedErr  error                                        // why the first of them cannot be deleted or released
}

func newRequests() *requests {
	return &requests{reads: map[dynamiccontroller.ObjectIdentifiers]read{}}
}

// readOf returns the cached result of a get request.
func (r *requests) readOf(id dynamiccontroller.ObjectIdentifiers) (known read, has bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, has = r.reads[id]
	return known, has
}

func (r *requests) keepRead(id dynamiccontroller.ObjectIdentifiers, result read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads[id] = result
}

func (r *requests) forgetRead(id dynamiccontroller.ObjectIdentifiers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reads, id)
}

func (r *requests) record(change childChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, change)
}

type read struct {
	object *unstructured.Unstructured
	err    error
}

func (c *childClient) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	r := childResource{childObjects: childObjects{client: c, gvr: gvr}}
	if c.Interface != nil {
		r.resource = c.Interface.Resource(gvr)
		r.ResourceInterface = r.resource
	}
	return r
}

type childResource struct {
	childObjects
	resource dynamic.NamespaceableResourceInterface
}

func (r childResource) Namespace(namespace string) dynamic.ResourceInterface {
	objects := childObjects{client: r.client, gvr: r.gvr, namespace: namespace}
	if r.resource != nil {
		objects.ResourceInterface = r.resource.Namespace(namespace)
	}
	return objects
}

type childObjects struct {
	dynamic.ResourceInterface
	client    *childClient
	gvr       schema.GroupVersionResource
	namespace string
}

func (o childObjects) Get(
	ctx context.Context, name string, opts metav1.GetOptions, subresources ...string,
) (object *unstructured.Unstructured, err error) {
	id := o.identifiers(name)
	if known, has := o.client.readOf(id); has {
		if err := reserve(ctx, known.object); err != nil {
			return nil, err
		}
		return known.object.DeepCopy(), known.err
	}
	err = o.request(o.client.limited(ctx), "get", nil, func(ctx context.Context) (err error) {
		object, err = o.ResourceInterface.Get(ctx, name, opts, subresources...)
		return err
	})
	if err == nil || apierrors.IsForbidden(err) {
		if err := reserve(ctx, object); err != nil {
			return nil, err
		}
		o.client.keepRead(id, read{object.DeepCopy(), err})
	}
	return object, err
}

// limited returns the context for requests that read objects. It has no logger because client-go would log responses
// that exceed the budget as errors.
func (c *childClient) limited(ctx context.Context) context.Context {
	if c.budget == nil {
		return ctx
	}
	return identity.WithResponseBudget(withoutLog(ctx), c.budget)
}

func (o childObjects) identifiers(name string) dynamiccontroller.ObjectIdentifiers {
	key := cache.ObjectName{Namespace: o.namespace, Name: name}
	return dynamiccontroller.ObjectIdentifiers{GVR: o.gvr, NamespacedKey: key.String()}
}

// Patch does not send rendered content, but the API server can quote the patched object. A cleanup patches the children
// that are kept.
func (o childObjects) Patch(
	ctx context.Context, name string, patchType types.PatchType, data []byte, opts metav1.PatchOptions,
	subresources ...string,
) (object *unstructured.Unstructured, err error) {
	o.client.forgetRead(o.identifiers(name))
	err = o.request(ctx, "patch", o.fieldOfType(), func(ctx context.Context) (err error) {
		object, err = o.ResourceInterface.Patch(ctx, name, patchType, data, opts, subresources...)
		return err
	})
	o.recordDenial("release", o.identifiers(name), err)
	return object, err
}

// Delete does not send rendered content, but admission can quote the deleted object.
func (o childObjects) Delete(
	ctx context.Context, name string, opts metav1.DeleteOptions, subresources ...string,
) error {
	id := o.identifiers(name)
	o.client.forgetRead(id)
	err := o.request(ctx, "delete", o.fieldOfType(), func(ctx context.Context) error {
		return o.ResourceInterface.Delete(ctx, name, opts, subresources...)
	})
	if err == nil {
		o.client.deleted(id)
	}
	o.recordDenial("delete", id, err)
	return err
}

// recordDenial records a request for the cleanup of a child that was forbidden.
func (o childObjects) recordDenial(verb string, id dynamiccontroller.ObjectIdentifiers, err error) {
	child := o.gvr.GroupResource().String() + " " + id.NamespacedKey
	c := o.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if apierrors.IsForbidden(err) && !slices.Contains(c.denied, child) {
		c.denied = append(c.denied, child)
		c.deniedVerb, c.deniedErr = cmp.Or(c.deniedVerb, verb), cmp.Or(c.deniedErr, err)
	}
}

// Apply sends rendered content.
func (o childObjects) Apply(
	ctx context.Context, name string, object *unstructured.Unstructured, opts metav1.ApplyOptions,
	subresources ...string,
) (now *unstructured.Unstructured, err error) {
	o.client.forgetRead(o.identifiers(name))
	err = o.request(ctx, "patch", o.client.fieldOf(object), func(ctx context.Context) (err error) {
		now, err = o.ResourceInterface.Apply(ctx, name, object, opts, subresources...)
		return err
	})
	if len(opts.DryRun) == 0 && (err == nil || apierrors.IsInvalid(err)) {
		o.client.refuses(o.identifiers(name), err != nil)
	}
	return now, err
}

// Create sends rendered content in a dry run, before a child is recreated.
func (o childObjects) Create(
	ctx context.Context, object *unstructured.Unstructured, opts metav1.CreateOptions, subresources ...string,
) (now *unstructured.Unstructured, err error) {
	err = o.request(ctx, "create", o.client.fieldOf(object), func(ctx context.Context) (err error) {
		now, err = o.ResourceInterface.Create(ctx, object, opts, subresources...)
		return err
	})
	return now, err
}

// fieldOf returns the field function for requests that send a rendered object. If the object is not sensitive, it
// returns nil.
func (c *childClient) fieldOf(object *unstructured.Unstructured) func(string) string {
	id := object.GetAnnotations()[resourceAnnotation]
	if !c.compiled.IsSensitive(id) {
		return nil
	}
	return func(field string) string { return c.compiled.KnownField(id, field) }
}

// fieldOfType returns the field function for requests that do not send rendered content. If the revision has templates
// of the type and none of them is sensitive, it returns nil, and errors are not redacted. Otherwise, it returns a
// function that hides all fields. Children of types without a template were created by other revisions, whose templates
// are unknown.
func (o childObjects) fieldOfType() func(string) string {
	compiled := o.client.compiled
	i := slices.IndexFunc(o.client.children, func(child Child) bool {
		return child.GVR.GroupResource() == o.gvr.GroupResource()
	})
	if compiled != nil && i >= 0 && !slices.ContainsFunc(compiled.Templates(), func(t blueprint.Template) bool {
		return t.GVK == o.client.children[i].GVK && compiled.IsSensitive(t.ID)
	}) {
		return nil
	}
	return func(string) string { return "" }
}

// request sends a request as the identity. If field is not nil, request redacts the error and drops warnings.
func (o childObjects) request(
	ctx context.Context, verb string, field func(string) string, send func(context.Context) error,
) error {
	id := o.client.identity
	if o.client.rejection != nil {
		return rejectedError{o.client.rejection}
	}
	if field != nil {
		ctx = withoutLog(ctx)
	}
	attempt := identity.Attempt{Identity: id, Verb: verb, Resource: o.gvr, Namespace: o.namespace}
	err := o.client.denials.Do(attempt, func() error { return send(ctx) })
	if rejection := rejectionIn(err); rejection != nil {
		return rejectedError{rejection}
	}
	if field != nil && !identity.IsPermissionMissing(err) {
		err = redacted(err, field)
	}
	if !id.IsPlatform() && apierrors.IsForbidden(err) {
		err = fmt.Errorf("as %s: %w", id, err)
	}
	return err
}

// rejectedError is returned for requests whose identity was rejected. It is also a Forbidden error, like the API
// server's response to an identity without permissions.
type rejectedError struct{ *identity.Rejection }

func (e rejectedError) Unwrap() error { return e.Rejection }

// Status implements [apierrors.APIStatus].
func (e rejectedError) Status() metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: e.Message,
	}
}

// withoutLog returns a context whose logger discards everything. The warning handler and client-go use this logger.
func withoutLog(ctx context.Context) context.Context { return logr.NewContext(ctx, logr.Discard()) }

// redacted returns the API server's error with its code, its reason and the names of its fields, but without its
// messages. field returns the part of a field path that can be shown. Errors without an API status come from the client
// and do not quote values.
func redacted(err error, field func(string) string) error {
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return err
	}
	status := api.Status()
	out := metav1.Status{TypeMeta: status.TypeMeta, Status: status.Status, Code: status.Code, Reason: status.Reason}
	var fields []string
	if d := status.Details; d != nil {
		out.Details = &metav1.StatusDetails{
			Name: d.Name, Group: d.Group, Kind: d.Kind, UID: d.UID, RetryAfterSeconds: d.RetryAfterSeconds,
		}
		for _, cause := range d.Causes {
			known := metav1.StatusCause{Type: cause.Type, Field: field(cause.Field)}
			out.Details.Causes = append(out.Details.Causes, known)
			if known.Field != "" {
				fields = append(fields, fmt.Sprintf("%s: %s", known.Field, known.Type))
			}
		}
	}
	out.Message = fmt.Sprintf("the API server rejected the request with %d %s; "+
		"its message is not shown, because the object can contain data from a Secret", status.Code,
		cmp.Or(string(status.Reason), "Unknown"))
	if len(fields) > 0 {
		out.Message += " (" + strings.Join(slices.Compact(fields), ", ") + ")"
	}
	return &apierrors.StatusError{ErrStatus: out}
}
