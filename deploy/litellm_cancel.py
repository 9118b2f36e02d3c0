"""A callback for LiteLLM: a request that fails, or whose client leaves, is cancelled by its id; see docs/proxies.md."""

import os

import httpx
from litellm.integrations.custom_logger import CustomLogger


class CancelById(CustomLogger):
    def __init__(self):
        super().__init__()
        key = {"Authorization": f"Bearer {os.environ['PYLLMCANCEL_API_KEY']}"}
        self._server = httpx.AsyncClient(base_url=os.environ["PYLLMCANCEL_API_BASE"], headers=key)

    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        data["extra_headers"] = {**(data.get("extra_headers") or {}), "X-Request-Id": data["litellm_call_id"]}
        return data

    async def async_post_call_failure_hook(
        self, request_data, original_exception, user_api_key_dict, traceback_str=None
    ):
        await self._server.post(f"requests/{request_data['litellm_call_id']}/cancel")


cancel_by_id = CancelById()
