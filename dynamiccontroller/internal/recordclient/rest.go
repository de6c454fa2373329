package recordclient

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

const (
	acceptObjects      = runtime.ContentTypeJSON
	acceptMetadata     = runtime.ContentTypeProtobuf + asItem + runtime.ContentTypeJSON + asItem + acceptObjects
	acceptMetadataList = runtime.ContentTypeProtobuf + asList + runtime.ContentTypeJSON + asList + acceptObjects

	asItem = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
	asList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
)

// restSource is a Source of records.
type restSource struct{ client rest.Interface }

// NewForConfigAndClient returns a Source for all projections. Its clients return records. Lists are throttled as cfg
// specifies; watches are not. httpClient takes precedence over the transport settings in cfg. Its transport is
// wrapped by [listwatch.RetryEarly].
func NewForConfigAndClient(cfg *rest.Config, httpClient *http.Client) (Source, error) {
	early := *httpClient
	early.Transport = listwatch.RetryEarly(cmp.Or(early.Transport, http.DefaultTransport))
	cfg = metadata.ConfigFor(cfg) // its codecs decode a Status from JSON and from protobuf
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.GroupVersion = nil
	cfg.APIPath = "/unused" // each request sets an absolute path
	client, err := rest.UnversionedRESTClientForConfigAndClient(cfg, &early)
	if err != nil {
		return nil, err
	}
	return restSource{client}, nil
}

// Check always returns nil, because the source supports all projections.
func (s restSource) Check(objects.Projection) error { return nil }

// Client returns a client for the objects of a type.
func (s restSource) Client(
	gvr schema.GroupVersionResource, namespace string, projection objects.Projection,
) listwatch.Client {
	return &client{s.client, gvr, namespace, projection}
}

// client lists and watches the objects of one type. Its methods have pointer receivers because copies of the client
// would make the stacks of reflector goroutines, which send the watch requests, grow from 8 kB to 16 kB.
type client struct {
	rest       rest.Interface
	gvr        schema.GroupVersionResource
	namespace  string
	projection objects.Projection
}

// List returns a *List. The caller sets the page size. The page size does not affect memory use, because only records
// are kept. The API server ignores the page size for a list at resourceVersion "0".
func (c *client) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	body, err := c.send(ctx, c.request(options, acceptMetadataList), isConnectionLost)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	list, err := readList(body, c.projection)
	if err != nil {
		return nil, fmt.Errorf("read list of %s: %w", c.gvr.GroupResource(), err)
	}
	return list, nil
}

// Watch returns a watch whose events carry records. An event of type ERROR carries a *metav1.Status, and one of type
// BOOKMARK a *metav1.PartialObjectMetadata. One goroutine reads the response. It ends when Stop is called, the response
// ends or ctx is cancelled.
func (c *client) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	// Decompressing the response would take 45 kB of memory for as long as the watch is open.
	request := c.request(options, acceptMetadata).SetHeader("Accept-Encoding", "identity").
		Throttle(flowcontrol.NewFakeAlwaysRateLimiter())
	// Request.Watch is not used, because it scans each event three times before decoding it, and because its buffers grow
	// up to 16 MiB and never shrink.
	body, err := c.send(ctx, request, func(err error) bool { return isConnectionLost(err) || utilnet.IsTimeout(err) })
	if err != nil {
		return nil, err
	}
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), newEventDecoder(body, c.projection),
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

func (c *client) request(options metav1.ListOptions, acceptMetadata string) *rest.Request {
	accept := acceptObjects
	if c.projection < objects.Full {
		accept = acceptMetadata
	}
	return c.rest.Get().AbsPath(c.path()...).SetHeader("Accept", accept).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"})
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

// Limits for retries of a request whose connection is lost. client-go's other methods use the same values.
const (
	maxRetries = 10
	retryDelay = time.Second
)

// send sends a request and returns the response body. Request.Stream retries a request only if the server requests a
// retry. Like other methods of rest.Request, send also retries a request whose connection is lost. This is important
// for watches, because after an error, the reflector would relist instead of resuming the watch.
func (c *client) send(ctx context.Context, request *rest.Request, retriable func(error) bool) (io.ReadCloser, error) {
	if problems := rest.IsValidPathSegmentName(c.namespace); len(problems) > 0 {
		return nil, fmt.Errorf("invalid namespace %q: %s", c.namespace, strings.Join(problems, ", "))
	}
	for retries := 0; ; retries++ {
		body, err := request.Stream(ctx)
		if err == nil || !retriable(err) || retries == maxRetries {
			return body, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retryDelay):
		}
	}
}

func isConnectionLost(err error) bool {
	return utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}
