package inventory

import "k8s.io/apimachinery/pkg/runtime/schema"

var (
	configMaps    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	widgets       = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	configMapKind = schema.GroupKind{Kind: "ConfigMap"}
	widgetKind    = schema.GroupKind{Group: "example.com", Kind: "Widget"}
)
