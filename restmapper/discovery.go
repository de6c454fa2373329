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
)

// answerTime is how long one discovery request may take.
const answerTime = 15 * time.Second

// errStale is what the document says of a version whose server it could not ask.
var errStale = errors.New("the API server could not reach the version's own server")

// discoverer makes the discovery requests. Its documents are used by one goroutine.
type discoverer struct {
	client  *http.Client
	base    *url.URL
	limiter flowcontrol.RateLimiter // of the config; may be nil
	etags   map[string]string       // of the last documents, by path
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

// statusError is an answer that is none.
type statusError struct {
	path   string
	status string
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("GET %s: %s: %s", e.path, e.status, e.body) }

// answer is a response that was read.
type answer struct {
	body        []byte
	contentType string
	etag        string
	same        bool // as the etag asked about
}

func (d *discoverer) get(ctx context.Context, path, accept, etag string) (answer, error) {
	if d.limiter != nil {
		if err := d.limiter.Wait(ctx); err != nil {
			return answer{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.base.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Accept", accept)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("GET %s: %w", path, err)
	case response.StatusCode == http.StatusNotModified:
		return answer{same: true}, nil
	case response.StatusCode != http.StatusOK:
		const enough = 500
		return answer{}, &statusError{path: path, status: response.Status, body: string(body[:min(len(body), enough)])}
	}
	return answer{body: body, contentType: response.Header.Get("Content-Type"), etag: response.Header.Get("Etag")}, nil
}

// document reads /api or /apis. It is nil if nothing has changed since the document whose etag is in etags. Versions that
// skip names are listed without being read.
func (d *discoverer) document(ctx context.Context, path string, skip func(schema.GroupVersion) bool) (document []documentVersion, etag string, err error) {
	a, err := d.get(ctx, path, discovery.AcceptV2+","+discovery.AcceptV1, d.etags[path])
	if err != nil || a.same {
		return nil, "", err
	}
	if isAggregated, _ := discovery.ContentTypeIsGVK(a.contentType, aggregatedGVK); !isAggregated {
		document, err = d.legacyDocument(ctx, path, a.body, skip)
		return document, "", err
	}
	var groups apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(a.body, &groups); err != nil {
		return nil, "", fmt.Errorf("GET %s: %w", path, err)
	}
	document = []documentVersion{}
	for i, g := range groups.Items {
		for j, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			if skip(gv) {
				// It must be listed all the same: what is not there any more may be forgotten.
				document = append(document, documentVersion{gv: gv, skipped: true})
				continue
			}
			dv := documentVersion{gv: gv, rank: rank{i, j}}
			if v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				dv.err = errStale
			} else {
				dv.resources = fromAggregated(v.Resources)
			}
			document = append(document, dv)
		}
	}
	return document, a.etag, nil
}

var aggregatedGVK = schema.GroupVersionKind{Group: "apidiscovery.k8s.io", Version: "v2", Kind: "APIGroupDiscoveryList"}

// legacyDocument asks for each version by itself, for an API server that knows no aggregated discovery.
func (d *discoverer) legacyDocument(ctx context.Context, path string, body []byte, skip func(schema.GroupVersion) bool) ([]documentVersion, error) {
	var groups metav1.APIGroupList
	var core metav1.APIVersions
	if err := errors.Join(json.Unmarshal(body, &groups), json.Unmarshal(body, &core)); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	document := []documentVersion{}
	for j, v := range core.Versions {
		document = append(document, documentVersion{gv: schema.GroupVersion{Version: v}, rank: rank{0, j}})
	}
	for i, g := range groups.Groups {
		for j, v := range g.Versions {
			document = append(document, documentVersion{gv: schema.GroupVersion{Group: g.Name, Version: v.Version}, rank: rank{i, j}})
		}
	}
	for i := range document {
		if document[i].skipped = skip(document[i].gv); !document[i].skipped {
			document[i].resources, document[i].err = d.version(ctx, document[i].gv)
		}
	}
	return document, ctx.Err()
}

// version asks for one version alone. An API server passes that on to the version's own server.
func (d *discoverer) version(ctx context.Context, gv schema.GroupVersion) ([]*resource, error) {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	a, err := d.get(ctx, path, discovery.AcceptV1, "")
	if err != nil {
		return nil, err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(a.body, &list); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	resources := []*resource{}
	for _, r := range list.APIResources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		resources = append(resources, &resource{
			name: r.Name, singular: r.SingularName, kind: r.Kind, namespaced: r.Namespaced,
			shortNames: r.ShortNames, categories: r.Categories,
		})
	}
	return resources, nil
}

// fromAggregated leaves out what has no kind, as client-go does: only its subresources are served.
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
			shortNames: r.ShortNames, categories: r.Categories,
		})
	}
	return resources
}
