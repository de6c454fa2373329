package recordclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

const (
	acceptJSON         = runtime.ContentTypeJSON
	acceptObjects      = acceptJSON + withoutManagedFields
	acceptMetadata     = runtime.ContentTypeProtobuf + asItem + runtime.ContentTypeJSON + asItem + acceptObjects
	acceptMetadataList = runtime.ContentTypeProtobuf + asList + runtime.ContentTypeJSON + asList + acceptObjects

	asItem = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1" + withoutManagedFields + ","
	asList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" + withoutManagedFields + ","

	// withoutManagedFields makes an API server leave out managedFields, which are often most of the metadata. The feature
	// gate ManagedFieldsOptOut of Kubernetes 1.38 is alpha. Servers without it ignore the parameter. See KEP-5958.
	withoutManagedFields = ";drop=metadata.managedFields"
)

// restSource is a Source of records.
type restSource struct{ client rest.Interface }

// NewForConfigAndClient returns a Source for all projections. Its requests return records. Lists are throttled as cfg
// specifies; watches are not. httpClient takes precedence over the transport settings in cfg. Its timeout and that of
// cfg are ignored, because they would end watches.
func NewForConfigAndClient(cfg *rest.Config, httpClient *http.Client) (Source, error) {
	own := *httpClient
	own.Timeout = 0
	own.Transport = retryAfterReader{cmp.Or(own.Transport, http.DefaultTransport)}
	cfg = metadata.ConfigFor(cfg) // its codecs decode a Status from JSON and from protobuf
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.GroupVersion = nil
	cfg.APIPath = "/unused" // each request sets an absolute path
	client, err := rest.UnversionedRESTClientForConfigAndClient(cfg, &own)
	if err != nil {
		return nil, err
	}
	return restSource{client}, nil
}

// Check always returns nil, because the source supports all projections.
func (s restSource) Check(objects.Projection) error { return nil }

// Requests returns the requests for the objects of a type.
func (s restSource) Requests(
	gvr schema.GroupVersionResource, namespace string, projection objects.Projection,
) listwatch.Requests {
	return &client{s.client, gvr, namespace, projection}
}

// client lists and watches the objects of one type. Its methods have pointer receivers because copies of the client
// would make the stacks of the goroutines that send the requests grow from 8 kB to 16 kB.
type client struct {
	rest       rest.Interface
	gvr        schema.GroupVersionResource
	namespace  string
	projection objects.Projection
}

// Throttle waits until the client's rate limiter allows a list.
func (c *client) Throttle(ctx context.Context) error {
	limiter := c.rest.GetRateLimiter()
	if limiter == nil {
		return nil
	}
	if err := limiter.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the client's rate limiter: %w", err)
	}
	return nil
}

// List passes a record of each item to item. The page size does not affect memory use, because only records are kept.
func (c *client) List(
	ctx context.Context, options listwatch.RequestOptions, item func(runtime.Object),
) (metav1.ListMeta, error) {
	body, err := c.send(ctx, c.request(options, acceptMetadataList).Throttle(flowcontrol.NewFakeAlwaysRateLimiter()))
	if err != nil {
		return metav1.ListMeta{}, err
	}
	defer func() { _ = body.Close() }()
	if options.Answered != nil {
		options.Answered()
	}
	list, err := readList(listBody{body}, c.projection, item)
	if err != nil {
		if err = fmt.Errorf("read list of %s: %w", c.gvr.GroupResource(), err); !errors.Is(err, io.ErrUnexpectedEOF) {
			err = malformed(err)
		}
		return metav1.ListMeta{}, err
	}
	return list, nil
}

// Watch returns a stream whose events carry records. An event of type ERROR carries a *metav1.Status, and one of type
// BOOKMARK a *metav1.PartialObjectMetadata. The response is read by the goroutine that calls the stream.
func (c *client) Watch(ctx context.Context, options listwatch.RequestOptions) (listwatch.Stream, error) {
	options.Watch = true
	// Decompressing the response would take 45 kB of memory for as long as the watch is open.
	request := c.request(options, acceptMetadata).SetHeader("Accept-Encoding", "identity").
		Throttle(flowcontrol.NewFakeAlwaysRateLimiter())
	// Request.Watch is not used, because it scans each event three times before decoding it, and because its buffers grow
	// up to 16 MiB and never shrink.
	body, err := c.send(ctx, request)
	if err != nil {
		return nil, err
	}
	return newEvents(body, c.projection), nil
}

func (c *client) request(options listwatch.RequestOptions, acceptMetadata string) *rest.Request {
	accept := acceptMetadata
	switch {
	case options.JSON || c.projection == objects.Complete:
		accept = acceptJSON
	case c.projection == objects.Full:
		accept = acceptObjects
	}
	return c.rest.Get().AbsPath(c.path()...).SetHeader("Accept", accept).
		SpecificallyVersionedParams(&options.ListOptions, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"})
}

func (c *client) path() []string {
	path := []string{"api"}
	if c.gvr.Group != "" {
		path = []string{"apis", c.gvr.Group}
	}
	path = append(path, c.gvr.Version)
	if c.namespace != "" {
		path = append(path, "namespaces", c.namespace)
	}
	return append(path, c.gvr.Resource)
}

// send sends a request and returns the response body. It does not retry.
func (c *client) send(ctx context.Context, request *rest.Request) (io.ReadCloser, error) {
	if problems := rest.IsValidPathSegmentName(c.namespace); len(problems) > 0 {
		return nil, fmt.Errorf("invalid namespace %q: %s", c.namespace, strings.Join(problems, ", "))
	}
	var retryAfter string
	body, err := request.MaxRetries(0).Stream(context.WithValue(ctx, retryAfterKey{}, &retryAfter))
	if err != nil {
		return nil, withRetryAfter(err, retryAfter)
	}
	return body, nil
}

type retryAfterKey struct{}

// retryAfterReader stores the Retry-After header of a response in the string that the context of the request holds. The
// REST client does not return the header if the response has a Status without a delay.
type retryAfterReader struct{ next http.RoundTripper }

func (t retryAfterReader) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if value, ok := r.Context().Value(retryAfterKey{}).(*string); ok && err == nil {
		*value = response.Header.Get("Retry-After")
	}
	return response, err
}

// WrappedRoundTripper returns the underlying transport, as client-go expects of wrappers.
func (t retryAfterReader) WrappedRoundTripper() http.RoundTripper { return t.next }

// withRetryAfter adds the value of a Retry-After header to an error that has a Status without a delay.
func withRetryAfter(err error, value string) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	seconds, parseErr := strconv.ParseInt(value, 10, 32)
	if !ok || parseErr != nil || seconds <= 0 {
		return err
	}
	if _, suggested := apierrors.SuggestsClientDelay(err); suggested {
		return err
	}
	changed := status.ErrStatus.DeepCopy()
	if changed.Details == nil {
		changed.Details = &metav1.StatusDetails{}
	}
	changed.Details.RetryAfterSeconds = int32(seconds)
	return &apierrors.StatusError{ErrStatus: *changed}
}
