// Package datakinds lists the kinds whose objects hold data that is lost with them.
package datakinds

import "k8s.io/apimachinery/pkg/runtime/schema"

var all = map[schema.GroupKind]bool{
	{Kind: "Namespace"}:             true,
	{Kind: "PersistentVolume"}:      true,
	{Kind: "PersistentVolumeClaim"}: true,
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:    true,
	{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot"}:           true,
	{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshotContent"}:    true,
	{Group: "groupsnapshot.storage.k8s.io", Kind: "VolumeGroupSnapshot"}: true,
}

// Contains reports whether the objects of a kind hold data: Namespaces, PersistentVolumes and their claims,
// CustomResourceDefinitions and volume snapshots. It cannot know this of custom resources.
func Contains(kind schema.GroupKind) bool { return all[kind] }
