"""Refusals of requests, with the status, code and message of Azure Storage."""

from __future__ import annotations

MESSAGES = {
    "AppendPositionConditionNotMet": (412, "The append position condition specified was not met."),
    "AuthenticationFailed": (403, "Server failed to authenticate the request. Make sure the value of Authorization is correct."),
    "AuthorizationPermissionMismatch": (403, "This request is not authorized to perform this operation using this permission."),
    "BlobAlreadyExists": (409, "The specified blob already exists."),
    "BlobNotFound": (404, "The specified blob does not exist."),
    "ConditionNotMet": (412, "The condition specified using HTTP conditional header(s) is not met."),
    "ContainerAlreadyExists": (409, "The specified container already exists."),
    "ContainerNotFound": (404, "The specified container does not exist."),
    "InvalidBlobOrBlock": (400, "The specified blob or block content is invalid."),
    "InvalidBlobType": (409, "The blob type is invalid for this operation."),
    "InvalidBlockList": (400, "The specified block list is invalid."),
    "InvalidHeaderValue": (400, "The value for one of the HTTP headers is not in the correct format."),
    "InvalidQueryParameterValue": (400, "Value for one of the query parameters specified in the request URI is invalid."),
    "InvalidRange": (416, "The range specified is invalid for the current size of the resource."),
    "InvalidResourceName": (400, "The specified resource name contains invalid characters."),
    "InvalidXmlDocument": (400, "XML specified is not syntactically valid."),
    "LeaseAlreadyPresent": (409, "There is already a lease present."),
    "LeaseIdMismatchWithBlobOperation": (412, "The lease ID specified did not match the lease ID for the blob."),
    "LeaseIdMismatchWithLeaseOperation": (409, "The lease ID specified did not match the lease ID for the resource."),
    "LeaseIdMissing": (412, "There is currently a lease on the resource and no lease ID was specified in the request."),
    "LeaseIsBreakingAndCannotBeAcquired": (409, "The lease is breaking: it cannot be acquired until it is broken."),
    "LeaseIsBrokenAndCannotBeRenewed": (409, "The lease has been broken explicitly and cannot be renewed."),
    "LeaseLost": (412, "A lease ID was specified, but the lease for the resource has expired."),
    "LeaseNotPresentWithBlobOperation": (412, "There is currently no lease on the resource."),
    "LeaseNotPresentWithLeaseOperation": (409, "There is currently no lease on the resource."),
    "MaxBlobSizeConditionNotMet": (412, "The max blob size condition specified was not met."),
    "Md5Mismatch": (400, "The MD5 value specified in the request did not match with the MD5 value calculated by the server."),
    "MissingRequiredHeader": (400, "An HTTP header that's mandatory for this request is not specified."),
    "NoAuthenticationInformation": (401, "Server failed to authenticate the request: it has no Authorization header and no SAS."),
    "NotImplemented": (501, "The emulator does not implement this operation."),
    "RequestBodyTooLarge": (413, "The request body is too large."),
    "ServerBusy": (503, "The server is busy."),
    "UnsupportedHttpVerb": (405, "The resource doesn't support the specified HTTP verb."),
}  # fmt: skip


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, detail: str = "", headers: dict[str, str] | None = None) -> None:
        status, message = MESSAGES[code]
        super().__init__(f"{message} {detail}".strip())
        self.status = status
        self.code = code
        self.headers = headers or {}
