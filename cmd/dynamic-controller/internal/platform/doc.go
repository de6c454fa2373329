// Package platform connects the parts of the platform: package acceptance turns a Blueprint into a served revision, and
// package instances turns an instance into its children.
//
//	Blueprint ─▶ acceptance ─▶ served revision ─┐
//	                                            ▼
//	                            instance ─▶ instances ─▶ children, status
//
// The platform uses two engines. The definitions engine serves Blueprints on every replica and does not write to the
// API server. The instances engine also watches on every replica, so that standby replicas have warm caches. It
// reconciles only on the leader.
package platform
