import time
from support.deployment import deployment, text_of, PARIS
async def test_smoke(tmp_path):
    t=time.time()
    async with deployment(tmp_path, gateways=2) as there:
        print("up", time.time()-t)
        await there.endpoint("e")
        t=time.time(); a = await there.invoke("e"); print("cold", time.time()-t, a.headers)
        assert text_of(a)==PARIS
        print(await there.stats("e"), there.spawns("e"), there.engines())
        print(await there.metric("standby_requests_in_flight","e"))
        t=time.time()
    print("down", time.time()-t)
