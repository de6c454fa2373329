package restmapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/dynamic-controller/engine/internal/protect"
)

// requestTimeout is the timeout of a discovery request.
const requestTimeout = 15 * time.Second

// Paths of the discovery documents of the core group and of all other groups.
const (
	corePath   = "/api"
	groupsPath = "/apis"
)

// errStale is the error reported for a version that the discovery document marks as stale.
var errStale = errors.New("the API server could not reach the server of this version")

// discoverer makes discovery requests. The methods that use etags must be called by one goroutine.
type discoverer struct {
	client  *http.Client
	base    *url.URL
	limiter flowcontrol.RateLimiter // from the config; can be nil
	etags   map[string]string       // of the last documents, by path
	epoch   int                     // the epoch of the catalog when the etags were last used
}

func newDiscoverer(cfg *rest.Config) (*discoverer, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	return &discoverer{client: client, base: base, limiter: cfg.RateLimiter, etags: map[string]string{}}, nil
}

// statusError is the error for a response with a status other than 200 or 304.
type statusError struct {
	path   string
	status string
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("GET %s: %s: %s", e.path, e.status, e.body) }

// response is an HTTP response whose body has been read.
type response struct {
	body        []byte
	contentType string
	etag        string
	notModified bool
}

// get sends a request. A panic in the transport of the config, or a call to runtime.Goexit, is returned as an error.
func (d *discoverer) get(ctx context.Context, path, accept, etag string) (r response, err error) {
	mistake := protect.Isolate(func() { r, err = d.send(ctx, path, accept, etag) })
	if mistake != nil {
		return response{}, fmt.Errorf("GET %s: %w", path, mistake)
	}
	return r, err
}

func (d *discoverer) send(ctx context.Context, path, accept, etag string) (response, error) {
	if d.limiter != nil {
		if err := d.limiter.Wait(ctx); err != nil {
			return response{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.base.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return response{}, err
	}
	request.Header.Set("Accept", accept)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	r, err := d.client.Do(request)
	if err != nil {
		return response{}, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return response{}, fmt.Errorf("GET %s: %w", path, err)
	case r.StatusCode == http.StatusNotModified:
		return response{notModified: true}, nil
	case r.StatusCode != http.StatusOK:
		const maxBody = 500
		return response{}, &statusError{path: path, status: r.Status, body: string(body[:min(len(body), maxBody)])}
	}
	return response{body: body, contentType: r.Header.Get("Content-Type"), etag: r.Header.Get("Etag")}, nil
}

// versionKind is the kind of the response for one version. Some aggregated API servers omit it, and client-go accepts
// that.
const versionKind = "APIResourceList"

// decode decodes a response of the given kind.
func (r response) decode(path, kind string, into any) error {
	var actual metav1.TypeMeta
	err := json.Unmarshal(r.body, &actual)
	if err == nil && (kind != versionKind || actual.Kind != "") {
		err = expectKind(actual.Kind, kind)
	}
	if err == nil {
		err = json.Unmarshal(r.body, into)
	}
	if err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// forgetBefore makes the next requests unconditional if the last documents were read in another epoch.
func (d *discoverer) forgetBefore(epoch int) {
	if d.epoch != epoch {
		clear(d.etags)
	}
	d.epoch = epoch
}

// document reads a discovery document. It returns nil if the document still has the stored etag. Excluded versions are
// returned without resources.
func (d *discoverer) document(
	ctx context.Context, path string, isExcluded func(schema.GroupVersion) bool,
) (document []documentVersion, etag string, err error) {
	r, err := d.get(ctx, path, discovery.AcceptV2+","+discovery.AcceptV1, d.etags[path])
	if err != nil || r.notModified {
		return nil, "", err
	}
	if isAggregated, _ := discovery.ContentTypeIsGVK(r.contentType, aggregatedGVK); !isAggregated {
		document, err = legacyDocument(path, r)
		for i := range document {
			document[i].excluded = isExcluded(document[i].gv)
		}
		return document, "", err
	}
	var groups apidiscoveryv2.APIGroupDiscoveryList
	if err := r.decode(path, aggregatedGVK.Kind, &groups); err != nil {
		return nil, "", err
	}
	document = []documentVersion{}
	for i, g := range groups.Items {
		for j, v := range g.Versions {
			dv := documentVersion{gv: schema.GroupVersion{Group: g.Name, Version: v.Version}, rank: rank{i, j}}
			switch {
			case isExcluded(dv.gv):
				dv.excluded = true
			case v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale:
				dv.err = errStale
			default:
				dv.resources = fromAggregated(v.Resources)
			}
			document = append(document, dv)
		}
	}
	return document, r.etag, nil
}

var aggregatedGVK = schema.GroupVersionKind{Group: "apidiscovery.k8s.io", Version: "v2", Kind: "APIGroupDiscoveryList"}

// legacyDocument returns the versions listed by an API server without aggregated discovery. Each version must be read
// separately.
func legacyDocument(path string, r response) ([]documentVersion, error) {
	document := []documentVersion{}
	if path == corePath {
		var core metav1.APIVersions
		if err := r.decode(path, "APIVersions", &core); err != nil {
			return nil, err
		}
		for j, v := range core.Versions {
			gv := schema.GroupVersion{Version: v}
			document = append(document, documentVersion{gv: gv, unread: true, rank: rank{0, j}})
		}
		return document, nil
	}
	var groups metav1.APIGroupList
	if err := r.decode(path, "APIGroupList", &groups); err != nil {
		return nil, err
	}
	for i, g := range groups.Groups {
		for j, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			document = append(document, documentVersion{gv: gv, unread: true, rank: rank{i, j}})
		}
	}
	return document, nil
}

// version reads the resources of one version. For an aggregated API, the API server forwards the request to that API's
// server.
func (d *discoverer) version(ctx context.Context, gv schema.GroupVersion) ([]*resource, error) {
	path := groupsPath + "/" + gv.String()
	if gv.Group == "" {
		path = corePath + "/" + gv.Version
	}
	r, err := d.get(ctx, path, discovery.AcceptV1, "")
	if err != nil {
		return nil, err
	}
	var list metav1.APIResourceList
	if err := r.decode(path, versionKind, &list); err != nil {
		return nil, err
	}
	resources := []*resource{}
	for _, r := range list.APIResources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		resources = append(resources, &resource{
			name: r.Name, singular: r.SingularName, kind: r.Kind, namespaced: r.Namespaced,
			shortNames: r.ShortNames, categories: r.Categories, verbs: r.Verbs,
		})
	}
	return resources, nil
}

// fromAggregated returns the resources of one version. Like client-go, it skips resources without a kind, unless they
// have subresources. A group that serves only subresources lists resources without a kind.
func fromAggregated(list []apidiscoveryv2.APIResourceDiscovery) []*resource {
	resources := make([]*resource, 0, len(list))
	for _, r := range list {
		if r.ResponseKind == nil || *r.ResponseKind == (metav1.GroupVersionKind{}) {
			if len(r.Subresources) > 0 && r.SingularResource != "" {
				resources = append(resources, &resource{name: r.SingularResource, singular: r.SingularResource})
			}
			continue
		}
		resources = append(resources, &resource{
			name: r.Resource, singular: r.SingularResource, kind: r.ResponseKind.Kind,
			namespaced: r.Scope == apidiscoveryv2.ScopeNamespace,
			shortNames: r.ShortNames, categories: r.Categories, verbs: r.Verbs,
		})
	}
	return resources
}
