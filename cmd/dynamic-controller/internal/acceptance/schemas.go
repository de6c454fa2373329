package acceptance

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/lru"
)

const (
	// SchemaRetryPeriod is how long the error from a failed schema request is cached.
	SchemaRetryPeriod = 30 * time.Second

	schemaTimeout = 10 * time.Second
	// schemaMaxAge limits the age of a cached schema, because no event is sent when an API server upgrade changes
	// built-in kinds.
	schemaMaxAge = 5 * time.Minute
	// maxSchemas limits the number of cached schemas. The largest one, that of a Deployment, takes about 2 MB.
	maxSchemas = 32
)

// OpenAPISchemas caches the schemas of kinds from /openapi/v3 of the API server, which all authenticated users can
// read. It is safe for concurrent use.
type OpenAPISchemas struct {
	resolver resolver.SchemaResolver
	requests singleflight.Group
	cache    *lru.Cache // of *cachedSchema by schemaKey

	mu      sync.Mutex     // guards changes
	changes map[string]int // number of calls to Changed, by group
}

// schemaKey identifies the schema of a kind. The key changes when any kind of the same group changes, so that the
// schema is read again.
type schemaKey struct {
	kind    schema.GroupVersionKind
	changes int
}

// cachedSchema is the result of a request. It is immutable.
type cachedSchema struct {
	schema  *spec.Schema // nil if none is published
	version string
	err     error
	expires time.Time
}

// NewOpenAPISchemas returns an empty cache.
func NewOpenAPISchemas(cfg *rest.Config) (*OpenAPISchemas, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = schemaTimeout
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return NewOpenAPISchemasFrom(&resolver.ClientDiscoveryResolver{Discovery: client}), nil
}

// NewOpenAPISchemasFrom returns an empty cache of the schemas that r resolves. Each call to r must return a new schema,
// because the cache modifies it.
func NewOpenAPISchemasFrom(r resolver.SchemaResolver) *OpenAPISchemas {
	return &OpenAPISchemas{resolver: r, cache: lru.New(maxSchemas), changes: map[string]int{}}
}

// For returns the schema of a kind and its version. Schemas with the same version are equal. The schema is nil if it is
// not published or if the platform is not permitted to read it. If the request fails, For returns the schema of an
// earlier request, or an error if there is none.
func (s *OpenAPISchemas) For(ctx context.Context, kind schema.GroupVersionKind) (common.Schema, string, error) {
	s.mu.Lock()
	key := schemaKey{kind, s.changes[kind.Group]}
	s.mu.Unlock()
	cached, _ := s.cache.Get(key)
	found, _ := cached.(*cachedSchema)
	if found == nil || !time.Now().Before(found.expires) {
		result := s.requests.DoChan(fmt.Sprint(kind, key.changes), func() (any, error) {
			next := s.read(kind, found)
			s.cache.Add(key, next)
			return next, nil
		})
		select {
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		case r := <-result:
			found = r.Val.(*cachedSchema)
		}
	}
	switch {
	case found.err != nil:
		return nil, "", fmt.Errorf("read the OpenAPI schema of %s: %w", kind, found.err)
	case found.schema == nil:
		return nil, "", nil
	}
	return &openapi.Schema{Schema: found.schema}, found.version, nil
}

// Changed must be called when a kind of the group is added, changed or removed.
func (s *OpenAPISchemas) Changed(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes[group]++
}

// read reads a schema. If the request fails, it returns the last schema that was read successfully, if any.
func (s *OpenAPISchemas) read(kind schema.GroupVersionKind, last *cachedSchema) *cachedSchema {
	next := &cachedSchema{expires: time.Now().Add(schemaMaxAge)}
	next.schema, next.version, next.err = s.resolve(kind)
	if next.err != nil {
		if last != nil && last.err == nil {
			*next = *last
		}
		next.expires = time.Now().Add(SchemaRetryPeriod)
	}
	return next
}

// resolve reads a schema with the resolver. It returns an error if the resolver panics, as it does for documents with
// null schemas.
func (s *OpenAPISchemas) resolve(kind schema.GroupVersionKind) (_ *spec.Schema, version string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid document: %v", r)
		}
	}()
	resolved, err := s.resolver.ResolveSchema(kind)
	switch {
	case errors.Is(err, resolver.ErrSchemaNotFound), apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, "", nil
	case err != nil:
		return nil, "", err
	}
	return compact(resolved)
}

// compact returns a copy of the parts of a schema that are used, and a hash of these parts. The schema must be copied
// because its strings keep the whole OpenAPI document in memory.
func compact(original *spec.Schema) (*spec.Schema, string, error) {
	prepare(original)
	data, err := json.Marshal(original)
	if err != nil {
		return nil, "", err
	}
	var out spec.Schema
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, "", err
	}
	return &out, fmt.Sprintf("%x", sha256.Sum256(data)), nil
}

// prepare removes unused descriptions. It also adapts the schemas of types for which the API server accepts more values
// than the published schema: a Quantity can be a number or a string, and a RawExtension can be any value.
func prepare(s *spec.Schema) {
	s.Description = ""
	switch {
	case len(s.OneOf) > 0 && len(s.Type) == 0:
		s.OneOf = nil
		s.Extensions = spec.Extensions{"x-kubernetes-int-or-string": true}
	case len(s.Type) == 1 && s.Type[0] == "object" && len(s.Properties) == 0 && s.AdditionalProperties == nil:
		s.Type = nil
	}
	for name, property := range s.Properties {
		prepare(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		prepare(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		prepare(s.AdditionalProperties.Schema)
	}
}
