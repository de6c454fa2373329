package adapter

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	clientcache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Cache returns a lister for a type, or an error that wraps [dynamiccontroller.ErrNotServed] if it does not cache the
// type. The Lister method of a DynamicController is a Cache of the served types.
type Cache func(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error)

// WatchCache returns a Cache of the types that a served type owns or watches. The watches should store whole objects,
// with WithCache(CacheFull); see [NewClient].
func WatchCache(
	engine *dynamiccontroller.DynamicController, served schema.GroupVersionResource, watches ...dynamiccontroller.Watch,
) Cache {
	return func(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
		for _, w := range watches {
			if w.Key().GVR == gvr {
				return engine.SecondaryLister(served, w.Key())
			}
		}
		return nil, dynamiccontroller.ErrNotServed
	}
}

// NewClient returns a client whose Get and List read from the first cache that contains the type. It uses live to send
// everything else to the API server:
//
//   - all writes. If live uses the FencedConfig of a replica, they are refused once another replica can lead.
//   - reads of types that are not in a cache, or that are cached only as metadata. Reads into a
//     *metav1.PartialObjectMetadata or a list of them always use the cache.
//   - reads of types whose shard this process neither leads nor keeps warm.
//   - lists with a field selector, a limit, a continue token or raw options, and gets with raw options.
//
// Like a manager's client, it can return objects that are older than the last write. It does not wait for caches.
// Instead, it returns an error that wraps [dynamiccontroller.ErrNotSynced] until the cache has synced, and the
// reconcile is then retried. A type that is served with CacheKeys cannot be read, unless its Cache returns an error
// that wraps [dynamiccontroller.ErrNotServed]. A cache that is restricted to a namespace or a selector contains only
// matching objects; to the client, other objects do not exist. The caller owns the returned objects. They have no
// managedFields by default.
//
// The client is safe for concurrent use.
func NewClient(live client.Client, caches ...Cache) client.Client {
	return &cachedClient{Client: live, caches: caches}
}

// cachedClient overrides the methods of a client that can read from caches.
type cachedClient struct {
	client.Client
	caches []Cache
}

// Get implements client.Reader.
func (c *cachedClient) Get(
	ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption,
) error {
	options := (&client.GetOptions{}).ApplyOptions(opts)
	found, lister, err := c.find(into)
	if err != nil {
		return err
	}
	if lister == nil || options.Raw != nil {
		return c.Client.Get(ctx, key, into, opts...)
	}
	if found.Scope.Name() == meta.RESTScopeNameRoot {
		key.Namespace = ""
	}
	from, err := lister.Get(clientcache.ObjectName(key).String())
	if errors.Is(err, dynamiccontroller.ErrOtherShard) {
		return c.Client.Get(ctx, key, into, opts...)
	}
	if err != nil {
		return err
	}
	if _, partial := into.(*metav1.PartialObjectMetadata); !partial && isPartial(from) {
		return c.Client.Get(ctx, key, into, opts...)
	}
	reflect.ValueOf(into).Elem().SetZero()
	if err := decode(from, into); err != nil {
		return fmt.Errorf("read %s %s from the cache: %w", found.Resource, key, err)
	}
	into.GetObjectKind().SetGroupVersionKind(found.GroupVersionKind)
	return nil
}

// List implements client.Reader.
func (c *cachedClient) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	found, lister, err := c.find(into)
	if err != nil {
		return err
	}
	uncached := options.FieldSelector != nil || options.Limit > 0 || options.Continue != "" || options.Raw != nil
	if lister == nil || uncached {
		return c.Client.List(ctx, into, opts...)
	}
	if found.Scope.Name() == meta.RESTScopeNameRoot {
		options.Namespace = ""
	}
	_, partial := into.(*metav1.PartialObjectMetadataList)
	items := []runtime.Object{}
	for item, err := range lister.All(options.Namespace, options.LabelSelector) {
		if errors.Is(err, dynamiccontroller.ErrOtherShard) {
			return c.Client.List(ctx, into, opts...)
		}
		if err != nil {
			return fmt.Errorf("list %s from the cache: %w", found.Resource, err)
		}
		if !partial && isPartial(item) {
			return c.Client.List(ctx, into, opts...)
		}
		if isPartial(item) {
			item.GetObjectKind().SetGroupVersionKind(found.GroupVersionKind)
		}
		items = append(items, item)
	}
	version, kind := found.GroupVersionKind.ToAPIVersionAndKind()
	data, err := json.Marshal(map[string]any{"apiVersion": version, "kind": kind + "List", "items": items})
	if err != nil {
		return err
	}
	reflect.ValueOf(into).Elem().SetZero()
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("list %s from the cache: %w", found.Resource, err)
	}
	return nil
}

// find returns the mapping of an object or a list, and the lister for its type. The lister is nil if no cache contains
// the type.
func (c *cachedClient) find(o runtime.Object) (*meta.RESTMapping, dynamiccontroller.Lister, error) {
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return nil, nil, err
	}
	if meta.IsListType(o) {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	found, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, nil, err
	}
	for _, cache := range c.caches {
		lister, err := cache(found.Resource)
		if !errors.Is(err, dynamiccontroller.ErrNotServed) {
			return found, lister, err
		}
	}
	return found, nil, nil
}

func isPartial(o runtime.Object) bool {
	_, partial := o.(*metav1.PartialObjectMetadata)
	return partial
}
