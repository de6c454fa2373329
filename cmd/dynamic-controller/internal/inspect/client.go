package inspect

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
)

// Client reads objects with the permissions of one user. It caches the types of the cluster, so it is meant for a
// single command.
type Client struct {
	dynamic  dynamic.Interface
	metadata metadata.Interface
	events   eventsv1.EventsGetter
	mapper   meta.RESTMapperWithContext
	owners   map[schema.GroupResource]*explain.Owner // by type
	requests int                                     // remaining requests, not counting discovery
}

// New returns a Client. It sends no requests.
func New(cfg *rest.Config) (*Client, error) {
	objects, err1 := dynamic.NewForConfig(cfg)
	metadatas, err2 := metadata.NewForConfig(cfg)
	events, err3 := eventsv1.NewForConfig(cfg)
	uncached, err4 := discovery.NewDiscoveryClientForConfig(cfg)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("create clients: %w", err)
	}
	types := memory.NewMemCacheClientWithContext(discovery.ToDiscoveryInterfaceWithContext(uncached))
	mapper := restmapper.NewDeferredDiscoveryRESTMapperWithContext(types)
	return &Client{
		dynamic: objects, metadata: metadatas, events: events,
		mapper: restmapper.NewShortcutExpanderWithContext(mapper, types, func(string) {}),
		owners: map[schema.GroupResource]*explain.Owner{}, requests: maxRequests,
	}, nil
}

// maxRequests is the maximum number of requests that a Client sends, not counting discovery. It is needed because an
// instance's inventory determines the number of requests, and users of the instance can change the inventory.
const maxRequests = 200

// errTooManyRequests is returned when a Client has sent maxRequests requests.
var errTooManyRequests = fmt.Errorf("the limit of %d requests has been reached", maxRequests)

// spend counts a request. It returns an error if the request must not be sent.
func (c *Client) spend(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.requests == 0:
		return errTooManyRequests
	}
	c.requests--
	return nil
}

// ErrUnknownType is returned for a type that the API server does not serve.
var ErrUnknownType = errors.New("unknown type")

// mappingFor resolves a type as kubectl does: it can be a plural, a singular, a kind or a short name, with or without a
// version and a group.
func (c *Client) mappingFor(ctx context.Context, typeName string) (*meta.RESTMapping, error) {
	gvr, resource := schema.ParseResourceArg(typeName)
	var kind schema.GroupVersionKind
	var err error
	if gvr != nil {
		kind, _ = c.mapper.KindForWithContext(ctx, *gvr)
	}
	if kind.Empty() {
		kind, err = c.mapper.KindForWithContext(ctx, resource.WithVersion(""))
	}
	if !kind.Empty() {
		return c.mapper.RESTMappingWithContext(ctx, kind.GroupKind(), kind.Version)
	}
	if err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("discover the API types of the cluster: %w", err)
	}
	gvk, groupKind := schema.ParseKindArg(typeName)
	if gvk == nil {
		versionless := groupKind.WithVersion("")
		gvk = &versionless
	}
	mapping, err := c.mapper.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version)
	if err != nil {
		mapping, err = c.mapper.RESTMappingWithContext(ctx, groupKind)
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("%w %q: kubectl api-resources lists all types", ErrUnknownType, typeName)
	}
	return mapping, err
}
